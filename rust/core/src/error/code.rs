//! Error codes, which docs/errors.md explains. A code never changes its meaning and is never
//! reused.

use crate::error::Error;
use crate::error::damage::Damage;
use crate::error::decode::DecodeError;

/// Shared by two kinds of errors.
const NO_MEMORY: &str = "FR102";

impl Error {
    /// The code of this kind of error in documents, logs and messages, such as `FR302`.
    ///
    /// The first digit is the area: 1 the system, 2 a file that cannot be used, 3 damage, 4 fields
    /// and values, 5 images, 6 writing, 7 the input and output of commands, 8 how reading and
    /// loading are called.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "FR101",
            Self::Memory { .. } => NO_MEMORY,
            Self::TooLarge { .. } => "FR107",
            Self::Threads(_) => "FR103",
            Self::Interrupted => "FR104",
            Self::Internal(_) => "FR108",
            Self::Unreadable { .. } => "FR105",
            Self::Lost { .. } => "FR106",
            Self::NotFrec { .. } => "FR201",
            Self::Version { .. } => "FR202",
            Self::Unsupported { .. } => "FR203",
            Self::NoCommit { .. } => "FR204",
            Self::Replaced { .. } => "FR205",
            Self::Limit { .. } => "FR207",
            Self::Corrupt { .. } => "FR301",
            Self::Value { damage, .. } => damage.code(),
            Self::Truncated { .. } => "FR303",
            Self::NothingLeft { .. } => "FR310",
            Self::Schema(_) => "FR401",
            Self::BadValue { .. } => "FR402",
            Self::SchemaMismatch { .. } => "FR403",
            Self::AddField { .. } => "FR404",
            Self::Unfilled { .. } => "FR405",
            Self::Filling { .. } => "FR406",
            Self::NoField { .. } => "FR407",
            Self::FieldType { .. } => "FR408",
            Self::Missing { .. } => "FR409",
            Self::Contents { .. } => "FR410",
            Self::NotAnImage { .. } => "FR510",
            Self::Locked { .. } => "FR601",
            Self::WriterClosed { .. } => "FR602",
            Self::WriterFailed { .. } => "FR603",
            Self::WrongProcess { .. } => "FR604",
            Self::Replace { .. } => "FR605",
            Self::WriteFailed { .. } => "FR606",
            Self::NameLost { .. } => "FR607",
            Self::NoLocks { .. } => "FR608",
            Self::OutOfRange { .. } => "FR801",
            Self::ReaderClosed { .. } => "FR802",
            Self::BufferTooSmall { .. } => "FR803",
            Self::Plan(_) => "FR804",
            Self::ForkedLoader { .. } => "FR805",
            Self::LoaderClosed => "FR806",
        }
    }

    /// The message with the code at its end, `... the payload is damaged [FR302]`.
    pub fn coded(&self) -> String {
        format!("{self} [{}]", self.code())
    }
}

impl Damage {
    /// As [`Error::code`].
    pub fn code(&self) -> &'static str {
        match self {
            Self::Checksum { .. } => "FR302",
            Self::Extent(_) => "FR304",
            Self::Compressed(_) => "FR305",
            Self::Text => "FR306",
            Self::List(_) => "FR307",
            Self::Json(_) => "FR308",
            Self::Content(_) => "FR309",
            Self::Side(_) => "FR311",
            Self::Image(error) => error.code(),
        }
    }
}

impl DecodeError {
    /// As [`Error::code`].
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "FR501",
            Self::Truncated { .. } => "FR502",
            Self::Damaged { .. } => "FR503",
            Self::Unsupported { .. } => "FR504",
            Self::TooLarge { .. } => "FR505",
            Self::Output { .. } => "FR506",
            Self::Crop { .. } => "FR507",
            Self::Pair { .. } => "FR508",
            Self::Memory { .. } => NO_MEMORY,
            Self::Internal { .. } => "FR509",
            Self::TooLong { .. } => "FR514",
            Self::SixteenBit { .. } => "FR515",
            Self::Scans { .. } => "FR516",
            Self::Mask { .. } => "FR517",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn no_two_kinds_of_errors_have_one_code() {
        let here = include_str!("code.rs");
        let codes: Vec<&str> =
            here.lines().filter_map(|line| line.trim().split_once("=> \"")).map(|(_, c)| c).collect();
        assert!(codes.len() > 40 && codes.iter().all(|code| code.starts_with("FR") && code.ends_with("\",")));
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
    }
}
