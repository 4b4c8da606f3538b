//! `Input` reads a fuzz input piece by piece; after its end it returns zeros.

/// The rest of an input.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes at most `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn word<const N: usize>(&mut self) -> [u8; N] {
        let mut word = [0; N];
        let taken = self.take(N);
        word[..taken.len()].copy_from_slice(taken);
        word
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.word())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.word())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.word())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.word())
    }
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    Input(bytes.get(at..).unwrap_or_default()).u16()
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    Input(bytes.get(at..).unwrap_or_default()).u32()
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Input(bytes.get(at..).unwrap_or_default()).u64()
}

/// Overwrites the part of `what` that lies within `bytes`.
pub fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    let Some(out) = bytes.get_mut(at..) else { return };
    let count = out.len().min(what.len());
    out[..count].copy_from_slice(&what[..count]);
}

/// The range of the given length that begins at `at`, if it lies within `bytes`.
pub fn range(bytes: &[u8], at: u64, length: u64) -> Option<std::ops::Range<usize>> {
    let end = at.checked_add(length).filter(|&end| end <= bytes.len() as u64)?;
    Some(at as usize..end as usize)
}

/// Returns true for one input in `of`, selected by its hash. Selects the inputs for slow checks.
pub fn chance(data: &[u8], of: u32) -> bool {
    crc32c::crc32c(data).is_multiple_of(of)
}
