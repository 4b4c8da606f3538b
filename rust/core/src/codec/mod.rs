//! `Codec` and `Encoder`: compression of single values (docs/format.md, section 2). May import
//! `limits`, `memory` and `image`.

use std::cell::RefCell;
use std::fmt;

use zstd_safe::{CCtx, CDict, DCtx, DDict};

use crate::limits::{MAX_EXPANSION, MAX_LZ4_BYTES, SMALL_VALUE_BYTES};

/// The zstd levels that a field may request.
pub(crate) const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// How a value is stored: the codec byte of its extent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Uncompressed.
    #[default]
    None = 0,
    /// One lz4 block. The extent holds the size of the value.
    Lz4 = 1,
    /// One zstd frame, with or without a dictionary.
    Zstd = 2,
    /// A packed JPEG: another form of the same image, larger and faster to decode.
    PackedJpeg = 3,
}

impl Codec {
    /// Returns the codec of a compressed value.
    pub(crate) fn from_byte(byte: u64) -> Option<Self> {
        match byte {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            3 => Some(Self::PackedJpeg),
            _ => None,
        }
    }

    /// Returns the name in the file and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::PackedJpeg => "packed-jpeg",
        }
    }
}

/// Reports whether the stated size is implausibly large for the stored bytes.
///
/// Memory is allocated before decompression shows whether the stated size is true, so it is
/// bounded.
pub(crate) fn is_bomb(stored: u64, raw: u64) -> bool {
    raw > SMALL_VALUE_BYTES && raw.div_ceil(MAX_EXPANSION) > stored
}

/// A codec with its settings, which compresses values. Threads share it.
pub(crate) enum Encoder {
    Lz4,
    Zstd { level: i32, dictionary: Option<CDict<'static>> },
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => f.write_str("Lz4"),
            Self::Zstd { level, dictionary } => {
                let id = dictionary.as_ref().and_then(CDict::get_dict_id);
                f.debug_struct("Zstd").field("level", level).field("dictionary", &id).finish()
            }
        }
    }
}

impl Encoder {
    /// Creates zstd without a dictionary.
    pub(crate) fn zstd(level: i32) -> Self {
        Self::Zstd { level, dictionary: None }
    }

    /// Creates zstd with a dictionary: one made by [`train`], or one read from a file.
    ///
    /// # Errors
    /// zstd refuses the dictionary, as text.
    pub(crate) fn with_dictionary(level: i32, dictionary: &[u8]) -> Result<Self, String> {
        let prepared = CDict::try_create(dictionary, level).ok_or("zstd does not take it")?;
        Ok(Self::Zstd { level, dictionary: Some(prepared) })
    }

    pub(crate) fn codec(&self) -> Codec {
        match self {
            Self::Lz4 => Codec::Lz4,
            Self::Zstd { .. } => Codec::Zstd,
        }
    }

    /// Compresses a value into the front of `scratch`. Returns `None` if the value must be stored
    /// uncompressed: it does not shrink, or it shrinks more than readers accept.
    ///
    /// # Errors
    /// Too little memory, as text.
    pub(crate) fn encode<'a>(&self, value: &[u8], scratch: &'a mut Vec<u8>) -> Result<Option<&'a [u8]>, String> {
        let made = match self {
            Self::Lz4 if value.len() > MAX_LZ4_BYTES => return Ok(None),
            Self::Lz4 => {
                let bound = lz4::block::compress_bound(value.len()).map_err(|e| e.to_string())?;
                reserve(scratch, bound)?;
                if scratch.len() < bound {
                    scratch.resize(bound, 0);
                }
                let made = lz4::block::compress_to_buffer(value, None, false, scratch);
                made.map_err(|error| error.to_string())?
            }
            Self::Zstd { level, dictionary } => {
                reserve(scratch, zstd_safe::compress_bound(value.len()))?;
                let made = with_contexts(|contexts| {
                    let context = contexts.compressing.as_mut().ok_or("no memory to compress")?;
                    let made = match dictionary {
                        Some(dictionary) => context.compress_using_cdict(scratch, value, dictionary),
                        None => context.compress(scratch, value, *level),
                    };
                    made.map_err(|code| zstd_safe::get_error_name(code).to_owned())
                });
                made?
            }
        };
        let (stored, raw) = (made as u64, value.len() as u64);
        Ok(if stored < raw && !is_bomb(stored, raw) { scratch.get(..made) } else { None })
    }
}

fn reserve(scratch: &mut Vec<u8>, bytes: usize) -> Result<(), String> {
    let more = bytes.saturating_sub(scratch.len());
    crate::memory::reserve(scratch, more)
        .map_err(|_| format!("not enough memory to compress: {bytes} bytes are needed"))
}

/// Decompresses one value into memory of exactly its size. Calls `dictionary` for the id that a
/// zstd frame names.
///
/// # Errors
/// The fault in the stored bytes, as text. Parts of `out` may have been written.
pub(crate) fn decode<'d>(
    codec: Codec,
    stored: &[u8],
    out: &mut [u8],
    dictionary: impl FnOnce(u32) -> Result<&'d DDict<'static>, String>,
) -> Result<(), String> {
    let found = match codec {
        Codec::None => {
            if stored.len() == out.len() {
                out.copy_from_slice(stored);
            }
            stored.len()
        }
        Codec::Lz4 => {
            let size = i32::try_from(out.len()).ok().filter(|_| i32::try_from(stored.len()).is_ok());
            let size = size.ok_or_else(|| format!("{} bytes are more than an lz4 block holds", out.len()))?;
            let made = lz4::block::decompress_to_buffer(stored, Some(size), out);
            made.map_err(|_| format!("it is not an lz4 block of {} bytes", out.len()))?
        }
        Codec::Zstd => {
            let named = |code| format!("zstd: {}", zstd_safe::get_error_name(code));
            // Otherwise a second frame after the first would pass.
            if zstd_safe::find_frame_compressed_size(stored).map_err(named)? != stored.len() {
                return Err("bytes follow the zstd frame".to_owned());
            }
            let dictionary = zstd_safe::get_dict_id_from_frame(stored).map(|id| dictionary(id.get())).transpose()?;
            let made = with_contexts(|contexts| {
                let context = contexts.decompressing.as_mut().ok_or("no memory to decompress")?;
                let made = match dictionary {
                    Some(dictionary) => context.decompress_using_ddict(out, stored, dictionary),
                    None => context.decompress(out, stored),
                };
                made.map_err(named)
            });
            made?
        }
        Codec::PackedJpeg => return crate::image::unpack_jpeg(stored, out),
    };
    if found == out.len() {
        Ok(())
    } else {
        Err(format!("it decompresses to {found} bytes, but the index holds {}", out.len()))
    }
}

/// The working memory of zstd, one per thread: creating it costs more than compressing a small
/// value.
struct Contexts {
    compressing: Option<CCtx<'static>>,
    decompressing: Option<DCtx<'static>>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> =
        RefCell::new(Contexts { compressing: CCtx::try_create(), decompressing: DCtx::try_create() });
}

fn with_contexts<T>(work: impl FnOnce(&mut Contexts) -> Result<T, String>) -> Result<T, String> {
    CONTEXTS.with_borrow_mut(work)
}

/// Trains a dictionary of at most `bytes` from sample values; `None` if they are too few or too
/// similar.
pub(crate) fn train<'a>(samples: impl IntoIterator<Item = &'a [u8]>, bytes: usize) -> Option<Vec<u8>> {
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    for sample in samples.into_iter().filter(|sample| !sample.is_empty()) {
        all.extend_from_slice(sample);
        sizes.push(sample.len());
    }
    let mut dictionary = Vec::with_capacity(bytes);
    let made = zstd_safe::train_from_buffer(&mut dictionary, &all, &sizes).ok()?;
    dictionary.truncate(made);
    dictionary_id(&dictionary).map(|_| dictionary)
}

/// Returns the id of a trained dictionary. Every frame that needs the dictionary carries it too.
pub(crate) fn dictionary_id(dictionary: &[u8]) -> Option<u32> {
    zstd_safe::get_dict_id_from_dict(dictionary).map(std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn none(id: u32) -> Result<&'static DDict<'static>, String> {
        Err(format!("dictionary {id}"))
    }

    fn encoders() -> [Encoder; 3] {
        [Encoder::Lz4, Encoder::zstd(1), Encoder::zstd(19)]
    }

    /// Returns text with enough structure for a dictionary.
    fn sentences(count: usize) -> Vec<Vec<u8>> {
        let sentence = |i: usize| format!("{{\"path\": \"train/n0{:04}/{i}.jpg\", \"label\": {}}}", i % 97, i % 1000);
        (0..count).map(|i| sentence(i).into_bytes()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_compressed_comes_back_and_no_other_length_does(
            value in prop::collection::vec(0_u8..4, 0..5000),
            cut in 0.0..1.0_f64,
        ) {
            for encoder in encoders() {
                let mut scratch = vec![7; 3];
                let Some(stored) = encoder.encode(&value, &mut scratch).unwrap() else { continue };
                prop_assert!(stored.len() < value.len());
                let mut out = vec![9; value.len()];
                decode(encoder.codec(), stored, &mut out, none).unwrap();
                prop_assert_eq!(&out, &value);
                for wrong in [value.len() - 1, value.len() + 1] {
                    prop_assert!(decode(encoder.codec(), stored, &mut vec![0; wrong], none).is_err());
                }
                #[allow(clippy::cast_sign_loss, clippy::cast_precision_loss)]
                let cut = (stored.len() as f64 * cut) as usize;
                prop_assert!(decode(encoder.codec(), &stored[..cut], &mut out, none).is_err());
                for more in [stored, &[0], &[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]] {
                    prop_assert!(decode(encoder.codec(), &[stored, more].concat(), &mut out, none).is_err());
                }
            }
        }

        #[test]
        fn garbage_is_an_error_or_bytes_but_never_a_crash(
            value in prop::collection::vec(0_u8..4, 64..3000),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..20),
        ) {
            for encoder in encoders() {
                let mut scratch = Vec::new();
                // Values that do not shrink are stored uncompressed, so damage to them changes no
                // codec data.
                let mut stored = encoder.encode(&value, &mut scratch).unwrap().unwrap_or(&value[..]).to_vec();
                for (at, bit) in &flips {
                    let at = at.index(stored.len());
                    stored[at] ^= 1 << bit;
                }
                let mut out = vec![0; value.len()];
                let _ = decode(encoder.codec(), &stored, &mut out, none);
                let _ = decode(encoder.codec(), &value, &mut out, none);
            }
        }
    }

    #[test]
    fn what_does_not_shrink_or_shrinks_beyond_belief_is_left_as_it_is() {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let noise: Vec<u8> = noise.take(4096).collect();
        for encoder in encoders() {
            for value in [&noise[..], &[], &[1], b"abc"] {
                assert_eq!(encoder.encode(value, &mut Vec::new()), Ok(None));
            }
        }
        let zeros = vec![0; SMALL_VALUE_BYTES as usize + 1];
        assert_eq!(Encoder::zstd(3).encode(&zeros, &mut Vec::new()), Ok(None));
        assert!(Encoder::zstd(3).encode(&zeros[1..], &mut Vec::new()).unwrap().is_some());
        assert!(
            !is_bomb(1, SMALL_VALUE_BYTES)
                && is_bomb(1, SMALL_VALUE_BYTES + 1)
                && is_bomb(0, u64::MAX)
                && !is_bomb(u64::MAX, u64::MAX)
        );
        assert!(
            !is_bomb(SMALL_VALUE_BYTES, SMALL_VALUE_BYTES * MAX_EXPANSION)
                && is_bomb(SMALL_VALUE_BYTES, SMALL_VALUE_BYTES * MAX_EXPANSION + 1)
        );
    }

    #[test]
    fn a_dictionary_makes_small_values_smaller_and_frames_name_it() {
        let samples = sentences(4000);
        let bytes = train(samples.iter().map(Vec::as_slice), 4096).unwrap();
        let id = dictionary_id(&bytes).unwrap();
        let (with, without) = (Encoder::with_dictionary(3, &bytes).unwrap(), Encoder::zstd(3));
        let prepared = DDict::create(&bytes);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for value in &samples[..50] {
            let small = with.encode(value, &mut a).unwrap().unwrap();
            assert!(without.encode(value, &mut b).unwrap().is_none_or(|plain| small.len() < plain.len()));
            let mut out = vec![0; value.len()];
            let mut asked = 0;
            let given = |id| {
                asked = id;
                Ok(&prepared)
            };
            decode(Codec::Zstd, small, &mut out, given).unwrap();
            assert_eq!((&out, asked), (value, id));
            assert_eq!(decode(Codec::Zstd, small, &mut out, none), Err(format!("dictionary {id}")));
        }
        // The head is valid, and the rest is garbage.
        let garbage = [&bytes[..8], &[0xFF; 500]].concat();
        assert!(dictionary_id(&garbage) == Some(id) && Encoder::with_dictionary(3, &garbage).is_err());
        let other = train(samples[2000..].iter().map(Vec::as_slice), 2048).unwrap();
        let (other, mut out) = (DDict::create(&other), vec![0; samples[0].len()]);
        let small = with.encode(&samples[0], &mut a).unwrap().unwrap();
        assert!(decode(Codec::Zstd, small, &mut out, |_| Ok(&other)).is_err());
    }

    #[test]
    fn no_dictionary_comes_of_too_few_samples() {
        assert_eq!(train([&b"one"[..], b"two"], 1024), None);
        assert_eq!(train([], 1024), None);
    }
}

pub(crate) mod choose;
