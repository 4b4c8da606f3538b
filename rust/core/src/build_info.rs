//! What a file and this build are like: for those who look why something is slow.

use fast_image_resize::Resizer;

use crate::format::crc;

/// A library that is built in, and its version.
pub fn libraries() -> [(&'static str, String); 3] {
    let lz4 = lz4::version();
    [
        ("libjpeg-turbo", env!("LIBJPEG_TURBO_VERSION").to_owned()),
        ("zstd", zstd_safe::version_string().to_owned()),
        ("lz4", format!("{}.{}.{}", lz4 / 10_000, lz4 / 100 % 100, lz4 % 100)),
    ]
}

/// What is computed by instructions that only some processors have, and by which ones on this one.
pub fn instructions() -> [(&'static str, String); 3] {
    [
        ("jpeg", jpeg_instructions().to_owned()),
        ("resize", format!("{:?}", Resizer::new().cpu_extensions()).to_lowercase()),
        ("crc", crc::instructions()),
    ]
}

/// What libjpeg-turbo chooses: it looks at the same bits of the processor, and does not tell.
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
