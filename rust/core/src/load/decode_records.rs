//! `decode_records`: decodes the images of many records, without a loader.

use crate::control::Control;
use std::sync::OnceLock;

use crate::error::Result;
use crate::error::damage::Damage;
use crate::format::schema::FieldIndex;
use crate::image::{DecodeOptions, Pixels, decode_image};
use crate::parallel::pool::Pool;
use crate::read::reader::Reader;
use crate::read::records::Records;
use crate::read::seen::Verify;

/// Reads and decodes the images of records, on up to `threads` threads. The default is the
/// reader's own number. Packed JPEGs are not restored.
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
    let images: Vec<OnceLock<Pixels>> = records.iter().map(|_| OnceLock::new()).collect();
    Pool::current().run(records.len(), threads.unwrap_or(reader.threads()), control, |item| {
        let record = records[item];
        let image = decode_image(&reader.encoded_image(field, record, verify)?, options);
        let image = image.map_err(|error| reader.damaged(field, record, Damage::Image(error)))?;
        let _ = images[item].set(image); // each item runs once
        Ok(())
    })?;
    Ok(images.into_iter().filter_map(OnceLock::into_inner).collect())
}
