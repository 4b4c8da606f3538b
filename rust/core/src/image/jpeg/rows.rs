//! `RowDecoder`: a safe interface to `rows.c`, which makes rows of pixels of a JPEG's header and its
//! coefficients.
//!
//! A C error causes a `longjmp` to the beginning of the C function that was called. The coefficients
//! come from a callback in Rust, which returns before anything can fail: no `longjmp` crosses a Rust
//! frame, and no panic crosses a C frame.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use super::entropy::{Huffman, Layout};
use super::ffi::Format;
use super::source::{Blocks, McuSource};

/// As in libjpeg: the most blocks of an MCU, and the tables of a kind.
const MOST_BLOCKS: usize = 10;
const TABLES: usize = 4;

/// `struct fastrecord_layout` of `rows.c`.
#[repr(C)]
struct RawLayout {
    components: c_int,
    blocks: c_int,
    component: [c_int; MOST_BLOCKS],
    columns: c_int,
    rows: c_int,
    restart_interval: c_int,
    width: c_int,
    height: c_int,
    counts: [[[u8; 17]; TABLES]; 2],
    symbols: [[[u8; 256]; TABLES]; 2],
    table: [[c_int; MOST_BLOCKS]; 2],
}

type Next = unsafe extern "C" fn(*mut c_void, *mut i16, c_int) -> c_int;

// SAFETY: these are the functions of `rows.c`, which has the same types.
unsafe extern "C" {
    fn fastrecord_rows_new() -> *mut c_void;
    fn fastrecord_rows_free(rows: *mut c_void);
    fn fastrecord_rows_start(
        rows: *mut c_void,
        header: *const u8,
        length: usize,
        denominator: c_int,
        cmyk: c_int,
        layout: *mut RawLayout,
    ) -> c_int;
    fn fastrecord_rows_read(
        rows: *mut c_void,
        out: *mut u8,
        pitch: usize,
        count: c_int,
        next: Next,
        user: *mut c_void,
    ) -> c_int;
}

/// A libjpeg decompressor that takes coefficients, one image after the other.
#[derive(Debug)]
pub(super) struct RowDecoder(NonNull<c_void>);

// SAFETY: the C code keeps all its state behind the pointer, and only one thread at a time has it.
unsafe impl Send for RowDecoder {}

impl RowDecoder {
    fn new() -> Option<Self> {
        // SAFETY: it takes nothing, and returns a new object or null.
        NonNull::new(unsafe { fastrecord_rows_new() }).map(Self)
    }

    /// Returns the kept one, or a new one; `None` if memory is short.
    pub(super) fn kept(kept: &mut Option<Self>) -> Option<&mut Self> {
        if kept.is_none() {
            *kept = Self::new();
        }
        kept.as_mut()
    }

    /// Reads a header, up to the end of the scan's, for an image that is scaled by `1 /
    /// denominator`. Returns how its MCUs are coded, and the width and height of the pixels; `None`
    /// if libjpeg has any complaint, or the scan is not the only one.
    pub(super) fn start(
        &mut self,
        header: &[u8],
        denominator: u32,
        format: Format,
    ) -> Option<(Scan<'_>, Layout, (u32, u32))> {
        let mut layout = RawLayout {
            components: 0,
            blocks: 0,
            component: [0; MOST_BLOCKS],
            columns: 0,
            rows: 0,
            restart_interval: 0,
            width: 0,
            height: 0,
            counts: [[[0; 17]; TABLES]; 2],
            symbols: [[[0; 256]; TABLES]; 2],
            table: [[0; MOST_BLOCKS]; 2],
        };
        let denominator = c_int::try_from(denominator).ok()?;
        // SAFETY: the object is live until `drop`. The C code reads `length` bytes of the header
        // within the call; afterwards libjpeg takes no more input, because `rows.c` replaced what
        // would read it. It writes to `layout`, which has the fields of the C struct.
        let started = unsafe {
            fastrecord_rows_start(
                self.0.as_ptr(),
                header.as_ptr(),
                header.len(),
                denominator,
                (format == Format::Cmyk).into(),
                &raw mut layout,
            )
        };
        if started == 0 {
            return None;
        }
        let number = |n: c_int| u32::try_from(n).ok();
        let count = usize::try_from(layout.blocks).ok().filter(|&count| count <= MOST_BLOCKS)?;
        let table = |kind: usize, block: usize| {
            let at = usize::try_from(layout.table[kind][block]).ok().filter(|&at| at < TABLES)?;
            Some(Huffman { counts: layout.counts[kind][at], symbols: layout.symbols[kind][at] })
        };
        let block = |at: usize| Some((usize::try_from(layout.component[at]).ok()?, table(0, at)?, table(1, at)?));
        let blocks = (0..count).map(block).collect::<Option<Vec<_>>>()?;
        let mcus = (number(layout.columns)?, number(layout.rows)?);
        let restart_interval = number(layout.restart_interval)?;
        let size = (number(layout.width)?, number(layout.height)?);
        let scan = Scan { decoder: self, pitch: size.0 as usize * format.channels(), left: size.1 };
        let components = usize::try_from(layout.components).ok()?;
        Some((scan, Layout { components, blocks, mcus, restart_interval }, size))
    }
}

impl Drop for RowDecoder {
    fn drop(&mut self) {
        // SAFETY: the object came from `fastrecord_rows_new`, and is not used after this.
        unsafe { fastrecord_rows_free(self.0.as_ptr()) }
    }
}

/// An image whose header was read.
pub(super) struct Scan<'a> {
    decoder: &'a mut RowDecoder,
    /// Bytes in a row.
    pitch: usize,
    /// Rows that were not read yet.
    left: u32,
}

impl Scan<'_> {
    /// Fills `out` with whole rows, without padding. Returns `None` if the window's data are
    /// irregular, if there are not as many rows, or after an error.
    pub(super) fn read(&mut self, out: &mut [u8], window: &mut Blocks<'_>) -> Option<()> {
        let rows = u32::try_from(out.len() / self.pitch).ok().filter(|&rows| rows <= self.left)?;
        self.left -= rows;
        // SAFETY: the object is live, and `start` has prepared it. libjpeg writes `rows` rows of
        // `pitch` bytes to `out`, which has room for them. `next` gets the pointer to the window,
        // which nothing else uses during the call.
        let read = unsafe {
            fastrecord_rows_read(
                self.decoder.0.as_ptr(),
                out.as_mut_ptr(),
                self.pitch,
                c_int::try_from(rows).ok()?,
                next,
                std::ptr::from_mut(window).cast(),
            )
        };
        (read != 0).then_some(())
    }
}

/// # Safety
/// `window` points to `Blocks` that nothing else uses meanwhile, and `blocks` to `count` blocks of
/// 64 numbers.
unsafe extern "C" fn next(window: *mut c_void, blocks: *mut i16, count: c_int) -> c_int {
    // SAFETY: the pointer is the one that `read` passed, within that call.
    let window = unsafe { &mut *window.cast::<Blocks<'_>>() };
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: libjpeg's blocks of an MCU lie one after the other. Nothing else uses them until `next`
    // returns.
    let blocks = unsafe { std::slice::from_raw_parts_mut(blocks.cast::<[i16; 64]>(), count) };
    catch_unwind(AssertUnwindSafe(|| window.next(blocks, count))).ok().flatten().is_some().into()
}
