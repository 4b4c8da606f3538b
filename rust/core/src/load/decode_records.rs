//! `decode_records`: decodes the images of many records, without a loader.

use crate::control::Control;
use crate::image::Pixels;
use crate::image::decode_image;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::error::damage::Damage;
use crate::format::schema::FieldIndex;
use crate::image::DecodeOptions;
use crate::parallel::pool::Pool;
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::read::seen::Verify;

/// Reads and decodes the images of records, on up to `threads` threads. The default is the
/// reader's own number.
///
/// # Errors
/// [`Damage::Image`] if an image cannot be decoded. Damage (with `verify`, also of payloads), a
/// record without a value, a field without payloads, failed reads and interrupts are errors
/// too.
#[allow(clippy::too_many_arguments)]
pub fn decode_records(
    reader: &Reader,
    field: FieldIndex,
    records: &Records<'_>,
    verify: Verify,
    options: DecodeOptions,
    threads: Option<usize>,
    control: &dyn Control,
) -> Result<Vec<Pixels>> {
    // The pool's threads may hold the job briefly after its end. Therefore take the images out
    // of the shared vector.
    let images: Arc<Vec<Mutex<Option<Pixels>>>> = Arc::new(records.iter().map(|_| Mutex::default()).collect());
    let body = {
        let (reader, records, images) = (reader.clone(), records.to_vec(), Arc::clone(&images));
        move |item: usize| {
            let record = records[item];
            let bytes = reader.payload(field, record, verify)?;
            let image = decode_image(&bytes, options);
            let image = image.map_err(|error| reader.damaged(field, record, Damage::Image(error)))?;
            *images[item].lock().unwrap_or_else(PoisonError::into_inner) = Some(image);
            Ok(())
        }
    };
    Pool::current().run(records.len(), threads.unwrap_or(reader.threads()), control, body)?;
    Ok(images.iter().filter_map(|image| image.lock().unwrap_or_else(PoisonError::into_inner).take()).collect())
}
