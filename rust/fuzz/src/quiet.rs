//! Selects the panics that end a run of the fuzzer.

use std::panic;

/// libFuzzer's own hook treats every panic as a finding. But image decoders are third-party code:
/// the core catches their panics and reports an error for the image. Only other panics count.
pub fn only_our_own_panics_end_it() {
    let end = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let file = info.location().map_or("", panic::Location::file);
        if !DECODERS.iter().any(|name| file.contains(name)) {
            end(info);
        }
    }));
}

/// The crates whose panics the core catches.
const DECODERS: [&str; 14] = [
    "/image-0",
    "/image-webp-",
    "/png-",
    "/tiff-",
    "/gif-",
    "/weezl-",
    "/fdeflate-",
    "/miniz_oxide-",
    "/zune-",
    "/byteorder",
    "/color_quant",
    "/flate2-",
    "/bytemuck-",
    "/half-",
];
