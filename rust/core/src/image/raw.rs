//! `raw_pixels`: images stored as raw pixels, in 8-bit binary PPM, which are read without a copy.

use super::Image;

/// Returns the pixels of a file that consists of `P6`, width, height and 255, each followed by one
/// whitespace character, and the pixels. Other files of the format, such as files with comments,
/// need the full decoder.
pub fn raw_pixels(data: &[u8]) -> Option<Image<'_>> {
    let rest = data.strip_prefix(b"P6")?;
    let rest = rest.strip_prefix(b"\n")?;
    let (width, rest) = number(rest, b' ')?;
    let (height, rest) = number(rest, b'\n')?;
    let pixels = rest.strip_prefix(b"255\n")?;
    let wanted = 3_u64.checked_mul(u64::from(width))?.checked_mul(u64::from(height))?;
    (wanted > 0 && pixels.len() as u64 == wanted).then_some(Image { width, height, pixels })
}

/// Parses a decimal number. Returns it, and the bytes after its end byte.
fn number(bytes: &[u8], end: u8) -> Option<(u32, &[u8])> {
    let length = bytes.iter().take(11).position(|&b| b == end)?;
    let digits = bytes.get(..length).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, bytes.get(length + 1..)?))
}

/// Returns the header that [`raw_pixels`] accepts.
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
