//! `image_size`: detects an image and its size from its bytes. It never looks at file names.

use crate::image::{Format, jpeg_info, jpeg2000_size};

/// Returns width and height in pixels of an encoded image.
///
/// # Errors
/// The reason why the bytes are not a recognized image, as text.
pub fn image_size(data: &[u8]) -> std::result::Result<(u32, u32), String> {
    if data.is_empty() {
        return Err("not an image: it is empty".to_owned());
    }
    // For JPEGs, use the decoder's own parser, which accepts stray bytes between headers.
    if Format::sniff(data) == Some(Format::Jpeg) {
        return match jpeg_info(data) {
            Ok(info) => Ok((info.width, info.height)),
            Err(error) => Err(format!("not an image: {error}")),
        };
    }
    if let Some(size) = jpeg2000_size(data) {
        return Ok(size);
    }
    let size = imagesize::blob_size(data).map_err(|_| {
        let head: Vec<String> = data.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!(
            "not an image of a known type, or its header is damaged: {} bytes, the first are {}",
            data.len(),
            head.join(" ")
        )
    })?;
    let pixels = |n: usize| u32::try_from(n).ok().filter(|&n| n > 0);
    pixels(size.width)
        .zip(pixels(size.height))
        .ok_or_else(|| format!("not an image: its header has {} x {} pixels", size.width, size.height))
}
