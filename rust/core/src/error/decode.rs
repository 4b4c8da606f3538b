//! `DecodeError`: why an image could not be decoded.

/// Why an image could not be decoded. The caller adds the origin of the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages describe the fields
pub enum DecodeError {
    #[error("not an image of a known type: {bytes} bytes, the first are {head}")]
    Unknown { bytes: usize, head: String },

    #[error("the {format} is truncated: {detail}")]
    Truncated { format: &'static str, detail: String },

    #[error("the {format} is damaged: {detail}")]
    Damaged { format: &'static str, detail: String },

    #[error("this kind of {format} is not supported: {detail}")]
    Unsupported { format: &'static str, detail: String },

    #[error(
        "{width} x {height} pixels are more than the limit of {limit}: `max_pixels` of the loader or of decode_image sets another"
    )]
    TooLarge { width: u32, height: u32, limit: u64 },

    #[error("{detail}")]
    TooLong { detail: String },

    #[error(
        "a grey {format} of 16 bits, where an image has 8: sixteen_bit=\"scale\" divides by 257, sixteen_bit=\"clip\" makes all above 255 white, as Pillow does"
    )]
    SixteenBit { format: &'static str },

    #[error(
        "the JPEG has more than {limit} scans, and each takes as long as a whole image: `jpegtran -copy all -optimize` rewrites them as one, without loss"
    )]
    Scans { limit: u32 },

    #[error(
        "{channels} beside another image would be resized as colours, which mixes the numbers of a mask: T.Like(..., interpolation=\"nearest\") keeps them"
    )]
    Mask { channels: String },

    #[error("the output of {found} bytes is not one of {width} x {height} pixels")]
    Output { found: usize, width: u32, height: u32 },

    #[error("the crop does not fit the image of {width} x {height} pixels, or the output: {detail}")]
    Crop { detail: String, width: u32, height: u32 },

    #[error("{detail}")]
    Pair { detail: String },

    #[error("no memory for {bytes} bytes")]
    Memory { bytes: u64 },

    #[error("internal error of the decoder: {detail}")]
    Internal { detail: String },
}
