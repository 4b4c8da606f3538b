//! `vectorized!`: functions that are compiled once more for AVX2 and FMA, from the same lines, so that they give
//! the same values with and without it.

/// Defines functions whose body is compiled for any processor, and for AVX2 with FMA on x86-64. The
/// processor decides at each call. The compiler contracts no multiplication and addition by itself, and
/// `mul_add` rounds once everywhere, so both give the same bits.
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                portable($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: only the instructions make the function unsafe, and the processor supports them.
                #[allow(unsafe_code)]
                return unsafe { avx2($($arg),*) };
            }
            portable($($arg),*)
        }
    )*};
}

pub(super) use vectorized;
