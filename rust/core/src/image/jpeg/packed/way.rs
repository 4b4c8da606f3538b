//! `Way`: how blocks are packed and unpacked on this machine.

/// The instructions that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    #[cfg(target_arch = "x86_64")]
    Vbmi2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Default for Way {
    fn default() -> Self {
        Self::all().next().unwrap_or(Self::Portable)
    }
}

impl Way {
    /// Returns all that this machine has, the fastest first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let special = {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            let vbmi2 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2");
            [(avx2 && vbmi2).then_some(Self::Vbmi2), avx2.then_some(Self::Avx2)].into_iter().flatten()
        };
        #[cfg(not(target_arch = "x86_64"))]
        let special = std::iter::empty();
        special.chain([Self::Portable])
    }
}
