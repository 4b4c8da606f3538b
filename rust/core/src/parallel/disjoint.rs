//! `fill_parts`: fills disjoint parts of one buffer on the threads of a pool.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::parallel::pool::Pool;

struct Target(*mut u8);

// SAFETY: the pointer is only used to create slices of disjoint parts, one for each item of a job
// (see `fill_parts`).
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    fn pointer(&self) -> *mut u8 {
        self.0
    }
}

/// Calls `fill` once for each part, in parallel: `fill(group, i, part)` gets the bytes
/// `offsets[i]..offsets[i + 1]` of `out`.
///
/// `groups` are ranges of part numbers; one thread fills a group in order.
///
/// # Errors
/// Errors of `fill`, or `Interrupted`. Any of the parts may then have been filled.
///
/// # Panics
/// If the offsets are not ascending or exceed `out`, or if groups overlap or name parts that do not
/// exist.
pub(crate) fn fill_parts(
    pool: &Pool,
    threads: usize,
    control: &dyn Control,
    out: &mut [u8],
    offsets: &[u64],
    groups: &[Range<usize>],
    fill: impl Fn(usize, usize, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]), "offsets must not fall");
    assert!(offsets.last().is_none_or(|&end| end <= out.len() as u64), "offsets lie within the buffer");
    assert!(groups.windows(2).all(|pair| pair[0].end <= pair[1].start), "groups must not overlap");
    assert!(groups.last().is_none_or(|last| last.end < offsets.len()), "a group names a part that is not there");
    let target = Target(out.as_mut_ptr());
    let items = groups.len();
    let body = move |item: usize| {
        for part in groups[item].clone() {
            let (start, end) = (offsets[part] as usize, offsets[part + 1] as usize);
            // SAFETY: the range lies within `out` and overlaps no other part. Offsets are ascending
            // and end within it (asserted above), groups do not overlap, and `Pool::run` calls an
            // item once. `out` stays borrowed and alive until `Pool::run` returns. That function
            // waits for every item, also on errors, panics and interrupts.
            let bytes = unsafe { std::slice::from_raw_parts_mut(target.pointer().add(start), end - start) };
            fill(item, part, bytes)?;
        }
        Ok(())
    };
    pool.run(items, threads, control, body)
}
