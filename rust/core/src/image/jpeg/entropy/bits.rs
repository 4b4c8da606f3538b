//! `Bits`: reading bits from bytes.

/// A place between two bits, and what was read ahead of it.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::image::jpeg) struct Ahead {
    /// The next byte to put into the buffer.
    at: usize,
    /// The next bits, from the top. Below the counted ones are bits of the byte at `at`, or zeros.
    buffer: u64,
    /// Bits in the buffer.
    count: u32,
}

impl Ahead {
    /// Returns the place in bits.
    pub(in crate::image::jpeg) const fn position(&self) -> usize {
        (8 * self.at).wrapping_sub(self.count as usize)
    }
}

/// Reads bits, the most significant one of a byte first.
#[derive(Debug, Clone, Copy)]
pub(in crate::image::jpeg) struct Bits<'a> {
    bytes: &'a [u8],
    ahead: Ahead,
}

impl<'a> Bits<'a> {
    /// Goes on where [`Bits::ahead`] was taken.
    pub(in crate::image::jpeg) const fn resume(bytes: &'a [u8], ahead: Ahead) -> Self {
        Self { bytes, ahead }
    }

    /// Starts at a bit. Returns `None` less than 8 bytes before the end.
    pub(in crate::image::jpeg) fn start(bytes: &'a [u8], bit: usize) -> Option<Self> {
        let mut bits = Self { bytes, ahead: Ahead { at: bit / 8, buffer: 0, count: 0 } };
        bits.fill()?;
        bits.drop((bit % 8) as u32);
        Some(bits)
    }

    pub(in crate::image::jpeg) const fn ahead(&self) -> Ahead {
        self.ahead
    }

    /// Fills the buffer to at least 56 bits. Returns `None` less than 8 bytes before the end.
    #[inline(always)]
    pub(in crate::image::jpeg) fn fill(&mut self) -> Option<()> {
        let Ahead { at, buffer, count } = &mut self.ahead;
        let next = u64::from_be_bytes(*self.bytes.get(*at..)?.first_chunk()?);
        *buffer |= next >> *count;
        *at += ((63 - *count) >> 3) as usize;
        *count |= 0x38; // plus eight times as many as there was room for
        Some(())
    }

    /// Returns the next bits, from the top.
    #[inline(always)]
    pub(in crate::image::jpeg) const fn peek(&self) -> u64 {
        self.ahead.buffer
    }

    /// Moves over bits that are in the buffer, at most 63.
    #[inline(always)]
    pub(in crate::image::jpeg) const fn drop(&mut self, count: u32) {
        self.ahead.buffer <<= count & 63;
        self.ahead.count = self.ahead.count.wrapping_sub(count);
    }
}
