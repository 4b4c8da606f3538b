//! `Jpeg` and `encode_jpeg`: a safe interface to `TurboJPEG`. All `unsafe` code for decoding and
//! encoding is in this file.
//!
//! A C error causes a `longjmp` inside `TurboJPEG`, which catches it before it returns. None
//! crosses a Rust frame. A region is decoded with one skip that begins at row 0, and one read.
//! Never skip twice: `jpeg_skip_scanlines` of this libjpeg-turbo (3.1.0) returns wrong rows when a
//! skip begins inside a row group (libjpeg-turbo issue 915).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use crate::image::Rect;
use crate::image::probe::JpegInfo;
use crate::limits::MAX_JPEG_SCANS;

/// libjpeg's messages about images that it still decodes. Any other message is an error that
/// stopped it.
const WARNINGS: [&str; 6] = [
    PREMATURE_END,
    "Corrupt JPEG data",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Unknown Adobe color transform",
    "Warning: ",
];
const PREMATURE_END: &str = "Premature end of JPEG file";
/// The end of a warning that comes after all pixels. As the first warning, it is the only one.
const BYTES_BEFORE_END: &str = "extraneous bytes before marker 0xd9";

/// The memory layout of a JPEG's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Rgb,
    Cmyk,
}

impl Format {
    pub(super) const fn of(info: &JpegInfo) -> Self {
        if info.components == 4 { Self::Cmyk } else { Self::Rgb }
    }

    pub(super) const fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Cmyk => 4,
        }
    }

    const fn code(self) -> c_int {
        match self {
            Self::Rgb => tj::TJPF_TJPF_RGB,
            Self::Cmyk => tj::TJPF_TJPF_CMYK,
        }
    }
}

/// The result of a decode that produced pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Clean,
    /// Damage inside the data. The undecoded part is grey.
    Damaged,
    /// The data ended too early. The rest of the image is grey.
    Truncated,
}

/// A JPEG with its own decompressor, which takes 0.2 us to create. A reused decompressor would lend
/// this image's tables to the next one. After an error in a header, it would also continue inside
/// that header.
pub(super) struct Jpeg<'a> {
    handle: Decompressor,
    data: &'a [u8],
    pub(super) width: u32,
    pub(super) height: u32,
    /// Whether a part of the image can be decoded.
    pub(super) regions: bool,
}

struct Decompressor(NonNull<c_void>);

impl<'a> Jpeg<'a> {
    /// Reads the headers.
    pub(super) fn open(data: &'a [u8]) -> Result<Self, String> {
        let handle = Decompressor(handle(tj::TJINIT_TJINIT_DECOMPRESS)?);
        // Do not copy ICC profiles out of the headers.
        set(handle.0, tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        set(handle.0, tj::TJPARAM_TJPARAM_SCANLIMIT, MAX_JPEG_SCANS.cast_signed())?;
        // SAFETY: the handle is live until `drop`. TurboJPEG reads `data.len()` bytes from the
        // pointer, within the call.
        let status = unsafe { tj::tj3DecompressHeader(handle.0.as_ptr(), data.as_ptr(), data.len() as u64) };
        handle.outcome(status)?;
        let positive = |parameter| u32::try_from(handle.get(parameter)).ok().filter(|&n| n > 0);
        let size = positive(tj::TJPARAM_TJPARAM_JPEGWIDTH).zip(positive(tj::TJPARAM_TJPARAM_JPEGHEIGHT));
        let (width, height) = size.ok_or("no image in it")?;
        let regions = handle.get(tj::TJPARAM_TJPARAM_SUBSAMP) != tj::TJSAMP_TJSAMP_UNKNOWN
            && handle.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 0;
        Ok(Self { handle, data, width, height, regions })
    }

    /// Decodes a region of the image scaled by `1 / denominator` (1, 2, 4 or 8), with sides rounded
    /// up. The rows go to the start of `out`, without padding. The region's `x` is a multiple of
    /// the scaled iMCU's width.
    pub(super) fn decode(
        &mut self,
        region: Rect,
        denominator: u32,
        format: Format,
        out: &mut [u8],
    ) -> Result<Outcome, String> {
        let (width, height) = (self.width.div_ceil(denominator), self.height.div_ceil(denominator));
        let whole = Rect { x: 0, y: 0, width, height };
        if !whole.contains(region) || region.is_empty() {
            return Err(format!("internal: region {region:?} of an image of {width} x {height}"));
        }
        let pitch = region.width as usize * format.channels();
        if out.len() < pitch * region.height as usize {
            return Err(format!("internal: {} bytes for region {region:?}", out.len()));
        }
        let factor = tj::tjscalingfactor { num: 1, denom: int(denominator)? };
        let crop = if self.regions {
            tj::tjregion { x: int(region.x)?, y: int(region.y)?, w: int(region.width)?, h: int(region.height)? }
        } else if region == whole {
            tj::tjregion { x: 0, y: 0, w: 0, h: 0 }
        } else {
            return Err("internal: only the whole of this image can be decoded".to_owned());
        };
        let handle = self.handle.0.as_ptr();
        // SAFETY: the handle is live; both calls take their argument by value.
        if unsafe { tj::tj3SetScalingFactor(handle, factor) != 0 || tj::tj3SetCroppingRegion(handle, crop) != 0 } {
            return Err(message(self.handle.0));
        }
        // SAFETY: the handle is live. TurboJPEG reads the data's length from the first pointer. It
        // writes the region's rows to the second one, `pitch` bytes apart; `out` is at least that
        // long (checked above). Only if no region can be set does the size come from the header.
        // `open` read that header from the same bytes, and they do not change: the core never
        // changes a committed record, nor a buffer while it is decoded.
        let status = unsafe {
            tj::tj3Decompress8(
                handle,
                self.data.as_ptr(),
                self.data.len() as u64,
                out.as_mut_ptr(),
                int(u32::try_from(pitch).map_err(|e| e.to_string())?)?,
                format.code(),
            )
        };
        self.handle.outcome(status)
    }
}

impl Decompressor {
    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is live; the call reads a number from it.
        unsafe { tj::tj3Get(self.0.as_ptr(), parameter.cast_signed()) }
    }

    /// Classifies the result. `TurboJPEG` also returns -1 after a warning, and still reports a
    /// warning if an error followed it. The text describes the first warning or the error, and
    /// distinguishes them.
    fn outcome(&self, status: c_int) -> Result<Outcome, String> {
        if status == 0 {
            return Ok(Outcome::Clean);
        }
        let text = message(self.0);
        // SAFETY: the handle is live; the call reads a number from it.
        let code = unsafe { tj::tj3GetErrorCode(self.0.as_ptr()) };
        if code != tj::TJERR_TJERR_WARNING.cast_signed() || !WARNINGS.iter().any(|start| text.starts_with(start)) {
            Err(text)
        } else if text.ends_with(BYTES_BEFORE_END) {
            Ok(Outcome::Clean)
        } else if text.starts_with(PREMATURE_END) {
            Ok(Outcome::Truncated)
        } else {
            Ok(Outcome::Damaged)
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle came from `tj3Init`, and is not used after this.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

/// The resolution of a JPEG's chroma relative to its luma.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the usual names
pub enum Subsampling {
    S444,
    S422,
    S420,
    S440,
    S411,
    S441,
    Grey,
}

/// Options for encoding a JPEG.
#[derive(Debug, Clone, Copy)]
pub struct JpegOptions {
    /// Quality, 1 to 100.
    pub quality: u8,
    /// Chroma subsampling.
    pub subsampling: Subsampling,
    /// Several scans, from coarse to fine; otherwise one scan.
    pub progressive: bool,
    /// MCUs between restart markers; 0 for none.
    pub restart_every: u16,
}

impl Default for JpegOptions {
    fn default() -> Self {
        Self { quality: 90, subsampling: Subsampling::S420, progressive: false, restart_every: 0 }
    }
}

/// Encodes `width` times `height` pixels, with rows without padding. With 3 bytes per pixel they
/// are RGB, with 4 CMYK (inverted, as in Adobe files, and stored as YCCK).
///
/// # Errors
/// The number of bytes matches neither, or an option is out of range; as text.
pub fn encode_jpeg(pixels: &[u8], width: u32, height: u32, options: &JpegOptions) -> Result<Vec<u8>, String> {
    let count = width as usize * height as usize;
    let format = match pixels.len() {
        0 => return Err("no pixels".to_owned()),
        n if n == 3 * count => Format::Rgb,
        n if n == 4 * count => Format::Cmyk,
        n => return Err(format!("{n} bytes are not {width} x {height} pixels of 3 or 4 bytes")),
    };
    let subsampling = match options.subsampling {
        Subsampling::S444 => tj::TJSAMP_TJSAMP_444,
        Subsampling::S422 => tj::TJSAMP_TJSAMP_422,
        Subsampling::S420 => tj::TJSAMP_TJSAMP_420,
        Subsampling::S440 => tj::TJSAMP_TJSAMP_440,
        Subsampling::S411 => tj::TJSAMP_TJSAMP_411,
        Subsampling::S441 => tj::TJSAMP_TJSAMP_441,
        Subsampling::Grey => tj::TJSAMP_TJSAMP_GRAY,
    };
    let compressor = Compressor(handle(tj::TJINIT_TJINIT_COMPRESS)?);
    set(compressor.0, tj::TJPARAM_TJPARAM_QUALITY, options.quality.into())?;
    set(compressor.0, tj::TJPARAM_TJPARAM_SUBSAMP, subsampling)?;
    set(compressor.0, tj::TJPARAM_TJPARAM_PROGRESSIVE, options.progressive.into())?;
    set(compressor.0, tj::TJPARAM_TJPARAM_RESTARTBLOCKS, options.restart_every.into())?;
    let (mut buffer, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the handle is live. TurboJPEG reads `height` rows of `width` pixels of the format,
    // without padding (pitch 0), which is all of `pixels`. The buffer is null: TurboJPEG allocates
    // it and returns its size.
    let status = unsafe {
        tj::tj3Compress8(
            compressor.0.as_ptr(),
            pixels.as_ptr(),
            int(width)?,
            0,
            int(height)?,
            format.code(),
            &raw mut buffer,
            &raw mut size,
        )
    };
    // SAFETY: `buffer` and `size` are as TurboJPEG left them.
    unsafe { take(compressor.0, status, buffer, size) }
}

/// Copies the output of `TurboJPEG`, and frees it.
///
/// # Safety
/// `buffer` is null or allocated by `TurboJPEG`, with `size` bytes written to it if `status` is 0.
/// It is not used after this.
unsafe fn take(handle: NonNull<c_void>, status: c_int, buffer: *mut u8, size: u64) -> Result<Vec<u8>, String> {
    let written = if status == 0 && !buffer.is_null() {
        // SAFETY: TurboJPEG wrote `size` bytes there, and they do not change before the copy.
        Ok(unsafe { std::slice::from_raw_parts(buffer, size as usize) }.to_vec())
    } else {
        Err(message(handle))
    };
    // SAFETY: the buffer is TurboJPEG's, or null, which is allowed. The slice over it is gone.
    unsafe { tj::tj3Free(buffer.cast()) };
    written
}

struct Compressor(NonNull<c_void>);

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: the handle came from `tj3Init`, and is not used after this.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

fn handle(kind: tj::TJINIT) -> Result<NonNull<c_void>, String> {
    // SAFETY: it takes a number, and returns a new handle or null.
    NonNull::new(unsafe { tj::tj3Init(kind.cast_signed()) })
        .ok_or_else(|| "not enough memory for a JPEG codec".to_owned())
}

fn set(handle: NonNull<c_void>, parameter: tj::TJPARAM, value: c_int) -> Result<(), String> {
    // SAFETY: the callers' handle is live; the call checks a number and stores it there.
    let status = unsafe { tj::tj3Set(handle.as_ptr(), parameter.cast_signed(), value) };
    if status == 0 { Ok(()) } else { Err(message(handle)) }
}

fn message(handle: NonNull<c_void>) -> String {
    // SAFETY: TurboJPEG returns a text with a final zero, in memory of the handle or of the thread.
    // It is valid until the next call, and is copied before that.
    let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(handle.as_ptr())) }.to_string_lossy();
    text.lines().collect::<Vec<_>>().join(" ")
}

fn int(n: u32) -> Result<c_int, String> {
    c_int::try_from(n).map_err(|_| format!("{n} is too large"))
}
