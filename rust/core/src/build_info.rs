//! Build facts for diagnostics: versions of libraries, and CPU instructions in use.

use crate::format::crc;
use crate::image;

/// Returns the built-in libraries and their versions.
pub fn libraries() -> [(&'static str, String); 3] {
    let lz4 = lz4::version();
    [
        ("libjpeg-turbo", env!("LIBJPEG_TURBO_VERSION").to_owned()),
        ("zstd", zstd_safe::version_string().to_owned()),
        ("lz4", format!("{}.{}.{}", lz4 / 10_000, lz4 / 100 % 100, lz4 % 100)),
    ]
}

/// Returns the operations that use CPU-specific instructions, and the instructions chosen on this
/// CPU.
pub fn instructions() -> [(&'static str, String); 3] {
    [
        ("jpeg", jpeg_instructions().to_owned()),
        ("resize", image::resize_instructions().to_owned()),
        ("crc", crc::instructions()),
    ]
}

/// Returns the instructions that libjpeg-turbo uses. It does not report them, so test the same CPU
/// features.
fn jpeg_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") { "avx2" } else { "sse2" }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "neon"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "none"
    }
}
