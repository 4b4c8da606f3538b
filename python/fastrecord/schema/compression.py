"""`Compression`: how the values of a field are compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastrecord.checks import choice, integer

_CODECS = ("lz4", "zstd", "auto")
_DEFAULT_LEVEL = 3
# zstd's default.
_DEFAULT_DICTIONARY = 110 << 10
_DICTIONARIES = range(256, (16 << 20) + 1)


@dataclass(frozen=True, slots=True)
class Compression:
    """How the values of one field are compressed.

    Args:
        codec: "lz4": decompresses at some GB/s a thread. "zstd": smaller for text and features, but
            slower to read. "auto": the writer holds the first values back (at most 1,024, or 8 MiB)
            and tries both codecs on them. It chooses the codec with the least time for a thread,
            with a disk that delivers 200 MB/s to it; or none, if compression does not pay.
            `Writer.compression()` then returns the choice; the log has the reason.
        level: zstd's effort, 1 to 22; 3 by default. The level does not affect the speed of reading.
        dictionary: For zstd and similar values of at most some KB: True, or its maximum size in
            bytes, trains a dictionary from the first values (at most 16,384, or 8 MiB). The file
            stores the dictionary.

    Values that do not get smaller are stored uncompressed. All threads decompress batches, directly
    into their destination. The stored bytes are always checked against their CRC first.

    Raises:
        ValueError: an unknown codec, a level or size out of range, or an option that the codec does
            not have.
        TypeError: a level that is not an int, or a dictionary that is neither a bool nor an int.
    """

    codec: str
    level: int | None = None
    dictionary: bool | int = False

    def __post_init__(self) -> None:
        choice("codec", self.codec, _CODECS)
        if self.codec != "zstd":
            if self.level is not None or self.dictionary is not False:
                raise ValueError(f"level and dictionary belong to zstd: {self.codec} has none")
            return
        level = _DEFAULT_LEVEL if self.level is None else integer("level", self.level, 1, 23)
        object.__setattr__(self, "level", level)
        if not isinstance(self.dictionary, int):
            raise TypeError(f"dictionary is True, False or a number of bytes, not {self.dictionary!r}")
        if not isinstance(self.dictionary, bool) and self.dictionary not in _DICTIONARIES:
            raise ValueError(f"a dictionary has {_DICTIONARIES[0]} to {_DICTIONARIES[-1]} bytes, not {self.dictionary}")

    def __repr__(self) -> str:
        """Return the compression as Python code."""
        level = "" if self.level is None else f", level={self.level}"
        dictionary = "" if self.dictionary is False else f", dictionary={self.dictionary}"
        return f'Compression("{self.codec}"{level}{dictionary})'

    def __str__(self) -> str:
        """Return the compression as in messages and `fastrecord info`: zstd level 3, dictionary."""
        level = "" if self.level is None else f" level {self.level}"
        return f"{self.codec}{level}{', dictionary' if self.dictionary is not False else ''}"

    @classmethod
    def of(cls, given: Compression | str | None) -> Compression | None:
        """Convert the argument of a field type: None, a Compression, or the name of a codec."""
        if given is None or isinstance(given, Compression):
            return given
        if not isinstance(given, str):
            raise TypeError(f'compression is None, "lz4", "zstd", "auto" or a fastrecord.Compression, not {given!r}')
        return cls(given)

    def _to_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"codec": self.codec}
        if self.level is not None:
            row["level"] = self.level
        if self.dictionary is not False:
            row["dictionary"] = self.dictionary
        return row

    @classmethod
    def _from_row(cls, row: dict[str, Any]) -> Compression:
        dictionary = row.get("dictionary", bool(row.get("dictionaries")))
        return cls(row["codec"], row.get("level"), True if dictionary == _DEFAULT_DICTIONARY else dictionary)
