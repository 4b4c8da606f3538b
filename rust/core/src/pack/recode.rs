//! `Recode`: optional conversion of images before they are stored: shrink, store raw pixels, pack
//! the coefficients, or add the crop index.

use crate::error::decode::DecodeError;
use crate::image::{
    Crop, DecodeOptions, Decoder, Filter, JpegOptions, Orientation, Rect, SixteenBit, Subsampling, crop_index,
    encode_jpeg, jpeg_info, pack_jpeg, raw_header, resized,
};
use crate::limits::MAX_JPEG_SIDE;

/// The maximum size of images. Larger images are shrunk in proportion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Pixels of the shorter side.
    ShortSide(u32),
    /// Pixels of the longer side.
    LongSide(u32),
}

impl Limit {
    /// Returns the shrunk size, with the longer side rounded down as in torchvision's `Resize`;
    /// `None` if the image is not larger.
    pub fn shrunk(self, (width, height): (u32, u32)) -> Option<(u32, u32)> {
        match self {
            Self::ShortSide(pixels) => (width.min(height) > pixels).then(|| resized(width, height, pixels, None)),
            Self::LongSide(pixels) => (width.max(height) > pixels).then(|| {
                let other =
                    |side: u32, long: u32| (u64::from(side) * u64::from(pixels) / u64::from(long)).max(1) as u32;
                if width >= height { (pixels, other(height, width)) } else { (other(width, height), pixels) }
            }),
        }
    }

    const fn pixels(self) -> u32 {
        match self {
            Self::ShortSide(pixels) | Self::LongSide(pixels) => pixels,
        }
    }
}

/// The form in which images are stored, after they were shrunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Their bytes.
    Encoded,
    /// Their bytes, with a crop index after JPEGs that gain by one.
    CropIndex,
    /// JPEGs as packed coefficients, if all of their bytes can be restored; otherwise their bytes.
    Packed,
    /// Pixels, in binary PPM.
    Raw,
}

/// The conversion of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recode {
    /// Shrink images above this limit.
    pub limit: Option<Limit>,
    /// Quality of the JPEGs that shrunk images become, 1 to 100.
    pub quality: u8,
    /// How they are stored.
    pub form: Form,
    /// The handling of 16-bit grey in images that are decoded.
    pub sixteen_bit: SixteenBit,
}

impl Default for Recode {
    fn default() -> Self {
        Self { limit: None, quality: 90, form: Form::Encoded, sixteen_bit: SixteenBit::Reject }
    }
}

/// An image after conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recoded {
    /// The encoded image, or PPM; `None` if its bytes are unchanged.
    pub bytes: Option<Vec<u8>>,
    /// Side bytes: see [`crop_index`](crate::image::crop_index). Otherwise empty.
    pub side: Vec<u8>,
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Whether it was shrunk.
    pub smaller: bool,
    /// Its packed form, which is stored instead of the bytes.
    pub packed: Option<Vec<u8>>,
}

impl Recoded {
    /// Returns the bytes of memory that it holds.
    pub(super) fn held(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        length(&self.bytes) + length(&self.packed) + self.side.len()
    }

    /// Returns the bytes to store for an image whose file has the bytes `data`.
    pub(super) fn stored<'a>(&'a self, data: &'a [u8]) -> &'a [u8] {
        self.bytes.as_deref().unwrap_or(data)
    }
}

impl Recode {
    /// Creates a decoder for [`Recode::apply`]. Its filter preserves most of the detail that later
    /// crops use, and it decodes at full size.
    pub fn decoder(&self) -> Decoder {
        let options = DecodeOptions {
            filter: Filter::Lanczos,
            min_reduced: f64::INFINITY,
            sixteen_bit: self.sixteen_bit,
            ..DecodeOptions::default()
        };
        Decoder::new(options)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// What is allowed, as text.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=100).contains(&self.quality) {
            return Err("a JPEG's quality is 1 to 100".to_owned());
        }
        if self.limit.is_some_and(|limit| !(1..=MAX_JPEG_SIDE).contains(&limit.pixels())) {
            return Err(format!("a side is 1 to {MAX_JPEG_SIDE} pixels"));
        }
        Ok(())
    }

    /// Converts an image whose header states `size`. Returns `None` if it stays unchanged, byte for
    /// byte, and gets no side bytes.
    ///
    /// Rows and columns stay as stored. A shrunk JPEG keeps the EXIF orientation as metadata. Raw
    /// pixels lose it.
    ///
    /// # Errors
    /// The image must be decoded, and cannot be.
    pub fn apply(&self, decoder: &mut Decoder, data: &[u8], size: (u32, u32)) -> Result<Option<Recoded>, DecodeError> {
        let smaller = match self.limit.and_then(|limit| limit.shrunk(size)) {
            Some(_) => self.shrunk(decoder, data)?,
            None => None,
        };
        if self.form == Form::Raw {
            return raw(decoder, data, smaller).map(Some);
        }
        let mut recoded = Recoded { bytes: None, side: Vec::new(), size, smaller: smaller.is_some(), packed: None };
        if let Some(size) = smaller {
            recoded.bytes = Some(self.encode(decoder, data, size)?);
            recoded.size = size;
        }
        match self.form {
            Form::CropIndex => recoded.side = crop_index(recoded.stored(data)).unwrap_or_default(),
            Form::Packed => recoded.packed = pack_jpeg(recoded.stored(data)),
            Form::Encoded | Form::Raw => {}
        }
        let changed = recoded.bytes.is_some() || !recoded.side.is_empty() || recoded.packed.is_some();
        Ok(changed.then_some(recoded))
    }

    /// Returns the shrunk size of an image to decode. The size in its first header may be wrong or
    /// above the limit.
    fn shrunk(&self, decoder: &Decoder, data: &[u8]) -> Result<Option<(u32, u32)>, DecodeError> {
        let size = decoder.size(data)?;
        Ok(self.limit.and_then(|limit| limit.shrunk(size)))
    }

    fn encode(&self, decoder: &mut Decoder, data: &[u8], size: (u32, u32)) -> Result<Vec<u8>, DecodeError> {
        if size.0.max(size.1) > MAX_JPEG_SIDE {
            let detail = format!("{} x {} pixels, made smaller, where a side holds {MAX_JPEG_SIDE}", size.0, size.1);
            return Err(DecodeError::Unsupported { format: "JPEG", detail });
        }
        let mut pixels = vec![0; 3 * size.0 as usize * size.1 as usize];
        shrink(decoder, data, size, &mut pixels)?;
        let grey = pixels.chunks_exact(3).all(|p| p[0] == p[1] && p[1] == p[2]);
        // Match the chroma resolution of the source.
        let subsampled = jpeg_info(data).is_ok_and(|info| info.mcu() != (8, 8));
        let subsampling = match (grey, subsampled) {
            (true, _) => Subsampling::Grey,
            (false, true) => Subsampling::S420,
            (false, false) => Subsampling::S444,
        };
        let options = JpegOptions { quality: self.quality, subsampling, ..JpegOptions::default() };
        let mut jpeg =
            encode_jpeg(&pixels, size.0, size.1, &options).map_err(|detail| DecodeError::Internal { detail })?;
        let orientation = Decoder::orientation_of(data)?;
        if orientation != Orientation::UPRIGHT {
            // EXIF must follow the start marker.
            jpeg.splice(2..2, exif(orientation));
        }
        Ok(jpeg)
    }
}

fn shrink(decoder: &mut Decoder, data: &[u8], size: (u32, u32), out: &mut [u8]) -> Result<(), DecodeError> {
    let whole = |width, height| (Crop::exact(Rect::whole(width, height), size), false);
    decoder.crop_resize_with(data, size, out, whole).map(|_| ())
}

fn raw(decoder: &mut Decoder, data: &[u8], smaller: Option<(u32, u32)>) -> Result<Recoded, DecodeError> {
    let Some(size) = smaller else {
        let image = decoder.decode(data)?;
        let bytes = [raw_header(image.width, image.height).as_bytes(), image.pixels].concat();
        let size = (image.width, image.height);
        return Ok(Recoded { bytes: Some(bytes), side: Vec::new(), size, smaller: false, packed: None });
    };
    let header = raw_header(size.0, size.1);
    let mut bytes = vec![0; header.len() + 3 * size.0 as usize * size.1 as usize];
    let (head, pixels) = bytes.split_at_mut(header.len());
    head.copy_from_slice(header.as_bytes());
    shrink(decoder, data, size, pixels)?;
    Ok(Recoded { bytes: Some(bytes), side: Vec::new(), size, smaller: true, packed: None })
}

/// Builds a JPEG segment of EXIF data that holds only the orientation.
fn exif(orientation: Orientation) -> Vec<u8> {
    let mut segment = b"\xFF\xE1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec();
    segment.extend(orientation.number().to_be_bytes());
    segment.extend([0; 6]);
    segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Random, raw_pixels};

    fn pixels(width: u32, height: u32, colours: bool) -> Vec<u8> {
        let mut random = Random::new(5, width.into(), height.into());
        let pixel = |n: u32| {
            let grey = (n % width * 200 / width) as u8 + (random.bits() & 15) as u8;
            if colours { [grey, 255 - grey, 128] } else { [grey; 3] }
        };
        (0..width * height).flat_map(pixel).collect()
    }

    fn jpeg(width: u32, height: u32, subsampling: Subsampling) -> Vec<u8> {
        let options = JpegOptions { subsampling, ..JpegOptions::default() };
        encode_jpeg(&pixels(width, height, true), width, height, &options).unwrap()
    }

    fn short(pixels: u32) -> Recode {
        Recode { limit: Some(Limit::ShortSide(pixels)), ..Recode::default() }
    }

    fn apply(recode: &Recode, data: &[u8]) -> Result<Option<Recoded>, DecodeError> {
        recode.apply(&mut recode.decoder(), data, crate::image_size(data).unwrap())
    }

    #[test]
    fn the_side_that_is_limited_gets_just_so_many_pixels_and_the_other_one_fewer_in_proportion() {
        for (limit, size, shrunk) in [
            (Limit::ShortSide(256), (500, 375), Some((341, 256))),
            (Limit::ShortSide(256), (375, 500), Some((256, 341))),
            (Limit::ShortSide(256), (256, 9000), None),
            (Limit::ShortSide(256), (257, 257), Some((256, 256))),
            (Limit::ShortSide(1), (3, 2), Some((1, 1))),
            (Limit::LongSide(256), (500, 375), Some((256, 192))),
            (Limit::LongSide(256), (375, 500), Some((192, 256))),
            (Limit::LongSide(256), (256, 256), None),
            (Limit::LongSide(256), (9000, 2), Some((256, 1))),
            (Limit::LongSide(1), (u32::MAX, u32::MAX), Some((1, 1))),
        ] {
            assert_eq!(limit.shrunk(size), shrunk, "{limit:?} of {size:?}");
        }
    }

    #[test]
    fn images_that_are_not_larger_stay_as_they_are() {
        let data = jpeg(90, 60, Subsampling::S444);
        for recode in [short(60), short(9000), Recode { limit: Some(Limit::LongSide(90)), ..Recode::default() }] {
            assert_eq!(apply(&recode, &data), Ok(None));
        }
    }

    #[test]
    fn colours_are_stored_as_finely_as_the_source_has_them_and_grey_without_any() {
        let mcu = |data: &[u8]| {
            let smaller = apply(&short(40), data).unwrap().unwrap();
            assert_eq!((smaller.size, smaller.smaller, smaller.side.len()), ((60, 40), true, 0));
            let info = jpeg_info(smaller.stored(&[])).unwrap();
            assert_eq!((info.width, info.height), (60, 40));
            (info.components, info.mcu())
        };
        assert_eq!(mcu(&jpeg(90, 60, Subsampling::S444)), (3, (8, 8)));
        assert_eq!(mcu(&jpeg(90, 60, Subsampling::S420)), (3, (16, 16)));
        assert_eq!(mcu(&jpeg(90, 60, Subsampling::S422)), (3, (16, 16)));
        assert_eq!(mcu(&jpeg(90, 60, Subsampling::Grey)), (1, (8, 8)));
        let ppm = |colours| [raw_header(90, 60).as_bytes(), &pixels(90, 60, colours)].concat();
        assert_eq!(mcu(&ppm(true)), (3, (8, 8)));
        assert_eq!(mcu(&ppm(false)), (1, (8, 8)));
    }

    #[test]
    fn raw_images_hold_the_pixels_that_are_decoded() {
        let data = jpeg(90, 60, Subsampling::S420);
        let raw = Recode { form: Form::Raw, ..Recode::default() };
        let stored = apply(&raw, &data).unwrap().unwrap();
        let mut decoder = Recode::default().decoder();
        assert_eq!(raw_pixels(stored.stored(&[])), Some(decoder.decode(&data).unwrap()));
        let smaller = apply(&Recode { form: Form::Raw, ..short(40) }, &data).unwrap().unwrap();
        let image = raw_pixels(smaller.stored(&[])).unwrap();
        assert_eq!((image.width, image.height, smaller.size), (60, 40, (60, 40)));
    }

    #[test]
    fn an_orientation_is_asked_for_by_the_smaller_image_too() {
        let data = jpeg(90, 60, Subsampling::S420);
        for number in 1..=8 {
            let orientation = Orientation::from_number(number);
            assert_eq!(orientation.number(), number);
            let turned = [&data[..2], &exif(orientation), &data[2..]].concat();
            let smaller = apply(&short(40), &turned).unwrap().unwrap();
            assert_eq!(smaller.size, (60, 40));
            assert_eq!(Decoder::orientation_of(smaller.stored(&[])), Ok(orientation));
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_an_error_only_where_it_has_to_be() {
        let data = jpeg(300, 200, Subsampling::S420);
        let cut = &data[..data.len() / 2];
        let raw = Recode { form: Form::Raw, ..Recode::default() };
        for recode in [short(100), raw] {
            assert!(matches!(apply(&recode, cut), Err(DecodeError::Truncated { .. })), "{recode:?}");
        }
        let index = Recode { form: Form::CropIndex, ..Recode::default() };
        assert_eq!(apply(&index, cut), Ok(None));
        assert_eq!(apply(&short(200), cut), Ok(None));
    }

    #[test]
    fn headers_that_claim_too_much_are_refused_before_anything_is_allocated() {
        let huge = b"P6\n4000000000 300\n255\n";
        for recode in
            [short(256), Recode { form: Form::Raw, ..short(256) }, Recode { form: Form::Raw, ..Recode::default() }]
        {
            let error = recode.apply(&mut recode.decoder(), huge, (4_000_000_000, 300)).unwrap_err();
            assert!(matches!(error, DecodeError::TooLarge { .. }), "{error}");
        }
        let long = [raw_header(80_000, 2).as_bytes(), &pixels(80_000, 2, true)].concat();
        let error =
            apply(&short(1), &[raw_header(150_000, 2).as_bytes(), &pixels(150_000, 2, true)].concat()).unwrap_err();
        assert!(matches!(error, DecodeError::Unsupported { format: "JPEG", .. }), "{error}");
        assert_eq!(apply(&short(1), &long).unwrap().unwrap().size, (40_000, 1));
    }

    #[test]
    fn a_crop_index_leaves_the_bytes_of_the_file_or_of_the_smaller_image_alone() {
        // Images of few bits have no index.
        let fine = JpegOptions { quality: 98, ..JpegOptions::default() };
        let data = encode_jpeg(&pixels(500, 400, true), 500, 400, &fine).unwrap();
        let index = Recode { form: Form::CropIndex, quality: 98, ..Recode::default() };
        let expected =
            Recoded { bytes: None, side: crop_index(&data).unwrap(), size: (500, 400), smaller: false, packed: None };
        assert_eq!(apply(&index, &data), Ok(Some(expected)));
        let smaller = Recode { limit: Some(Limit::ShortSide(200)), ..index };
        let plain = apply(&Recode { form: Form::Encoded, ..smaller }, &data).unwrap().unwrap();
        let smaller = apply(&smaller, &data).unwrap().unwrap();
        let side = crop_index(plain.stored(&[])).unwrap();
        assert_eq!(smaller, Recoded { side, ..plain });
        let other = [raw_header(200, 200).as_bytes(), &pixels(200, 200, true)].concat();
        assert_eq!(apply(&index, &other), Ok(None));
    }

    #[test]
    fn numbers_beyond_their_range_are_refused() {
        assert_eq!(short(256).check(), Ok(()));
        for wrong in
            [short(0), short(65_501), Recode { quality: 0, ..short(256) }, Recode { quality: 101, ..short(256) }]
        {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
