//! Whole images: of bytes, and of many records at once.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::image::{DecodeError, DecodeOptions, Decoder, Image};
use crate::memory;
use crate::parallel::pool::Pool;
use crate::read::reader::Reader;
use crate::read::seen::Verify;

thread_local! {
    static DECODER: RefCell<Option<(DecodeOptions, Decoder)>> = const { RefCell::new(None) };
}

/// A decoded image that owns its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// RGB, a byte each, row after row without padding.
    pub pixels: Vec<u8>,
}

/// Decodes a whole image, by a decoder that each thread makes once.
///
/// # Errors
/// As [`Decoder::decode`].
pub fn decode_image(data: &[u8], options: DecodeOptions) -> std::result::Result<Pixels, DecodeError> {
    with_decoded(data, options, |image| {
        let bytes = image.pixels.len() as u64;
        let pixels = memory::copied(image.pixels).map_err(|_| DecodeError::Memory { bytes })?;
        Ok(Pixels { width: image.width, height: image.height, pixels })
    })?
}

/// Decodes a whole image, of which `take` takes what it wants, by a decoder that each thread makes once.
pub(crate) fn with_decoded<T>(
    data: &[u8],
    options: DecodeOptions,
    take: impl FnOnce(Image<'_>) -> T,
) -> std::result::Result<T, DecodeError> {
    DECODER.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(before, _)| *before != options) {
            *kept = None;
        }
        let (_, decoder) = kept.get_or_insert_with(|| (options, Decoder::new(options)));
        decoder.decode(data).map(take)
    })
}

impl Reader {
    /// Reads and decodes the images of records, on up to `threads` threads; the reader's own number if none is given.
    ///
    /// # Errors
    /// [`Error::Decode`] for what cannot be decoded; damage (with `verify`, of payloads too), a record without a value, a
    /// field without payloads, failed reads and interrupts.
    pub fn decode_batch(
        &self,
        field: usize,
        records: &[u64],
        verify: impl Into<Verify>,
        options: DecodeOptions,
        threads: Option<usize>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<Vec<Pixels>> {
        let (name, verify) = (self.field_at(field)?.name.clone(), verify.into());
        // The pool's threads may hold the job for an instant after its end: images are taken out of what they share.
        let images: Arc<Vec<Mutex<Option<Pixels>>>> = Arc::new(records.iter().map(|_| Mutex::default()).collect());
        let body = {
            let (reader, records, images) = (self.clone(), records.to_vec(), Arc::clone(&images));
            move |item: usize| {
                let record = records[item];
                let bytes = reader.payload(field, record, verify)?;
                let image = decode_image(&bytes, options).map_err(|source| {
                    let (path, field) = (reader.path().to_owned(), name.clone());
                    Error::Decode { path, record, field, source }
                })?;
                *images[item].lock().unwrap_or_else(PoisonError::into_inner) = Some(image);
                Ok(())
            }
        };
        Pool::current().run(records.len(), threads.unwrap_or(self.threads()), interrupted, body)?;
        Ok(images.iter().filter_map(|image| image.lock().unwrap_or_else(PoisonError::into_inner).take()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{JpegOptions, encode_jpeg};

    #[test]
    fn a_thread_decodes_by_the_options_of_each_call() {
        let data = encode_jpeg(&[200; 3 * 20 * 10], 20, 10, &JpegOptions::default()).unwrap();
        let small = DecodeOptions { max_pixels: 199, ..DecodeOptions::default() };
        for _ in 0..2 {
            let image = decode_image(&data, DecodeOptions::default()).unwrap();
            assert_eq!((image.width, image.height, image.pixels.len()), (20, 10, 600));
            assert!(matches!(decode_image(&data, small), Err(DecodeError::TooLarge { limit: 199, .. })));
        }
    }
}
