//! Pixels that are stored as they are: binary PPM of 8 bits, read without a copy.

use super::Image;

/// The pixels of a file that is just `P6`, width, height, 255, each followed by one white space, and the pixels. Others of
/// the format, such as with comments, are for the decoder that knows them all.
pub fn raw_pixels(data: &[u8]) -> Option<Image<'_>> {
    let rest = data.strip_prefix(b"P6")?;
    let rest = rest.strip_prefix(b"\n")?;
    let (width, rest) = number(rest, b' ')?;
    let (height, rest) = number(rest, b'\n')?;
    let pixels = rest.strip_prefix(b"255\n")?;
    let wanted = 3_u64.checked_mul(u64::from(width))?.checked_mul(u64::from(height))?;
    (wanted > 0 && pixels.len() as u64 == wanted).then_some(Image { width, height, pixels })
}

/// A decimal number, and what lies behind the byte that ends it.
fn number(bytes: &[u8], end: u8) -> Option<(u32, &[u8])> {
    let length = bytes.iter().take(11).position(|&b| b == end)?;
    let digits = bytes.get(..length).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, bytes.get(length + 1..)?))
}

/// The bytes before the pixels, as [`raw_pixels`] reads them.
pub fn raw_header(width: u32, height: u32) -> String {
    format!("P6\n{width} {height}\n255\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_of_the_plain_form_are_read_in_place() {
        let pixels: Vec<u8> = (0..18).collect();
        let file = |head: &str| [head.as_bytes(), &pixels].concat();
        let good = file(&raw_header(3, 2));
        assert_eq!(raw_pixels(&good), Some(Image { width: 3, height: 2, pixels: &pixels }));
        for end in 0..good.len() {
            assert_eq!(raw_pixels(&good[..end]), None, "{end}");
        }
        for head in [
            "P6\n3 2\n256\n",
            "P6\n2 2\n255\n",
            "P6\n3  2\n255\n",
            "P6\n# 3\n3 2\n255\n",
            "P5\n3 2\n255\n",
            "P6\n-3 2\n255\n",
            "P6\n+3 2\n255\n",
            "P6\n4294967299 2\n255\n",
            "P6\n0 0\n255\n",
        ] {
            assert_eq!(raw_pixels(&file(head)), None, "{head:?}");
        }
        assert_eq!(raw_pixels(raw_header(0, 0).as_bytes()), None);
    }
}
