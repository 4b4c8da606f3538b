//! `Control`: lets a caller stop a long call and watch its progress.

use crate::error::{Error, Result};

/// The caller's side of a long call. A call uses it on the calling thread only, at least every
/// 100 ms. `&|| false` is a control that never stops and reports nothing.
pub trait Control {
    /// Reports whether the call must stop, such as after Ctrl-C.
    fn is_stopped(&self) -> bool;

    /// Takes the bytes that the call has processed so far.
    fn report(&self, _bytes: u64) {}
}

impl<F: Fn() -> bool> Control for F {
    fn is_stopped(&self) -> bool {
        self()
    }
}

impl dyn Control + '_ {
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_stopped() { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub(crate) fn report_and_check(&self, bytes: u64) -> Result<()> {
        self.report(bytes);
        self.check()
    }
}
