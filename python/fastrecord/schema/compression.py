"""How the values of a field are compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CODECS = ("lz4", "zstd", "auto")
_LEVELS = range(1, 23)
_DEFAULT_LEVEL = 3
# zstd's own.
_DEFAULT_DICTIONARY = 110 << 10
_DICTIONARIES = range(256, (16 << 20) + 1)


@dataclass(frozen=True, slots=True)
class Compression:
    """How the values of one field are compressed.

    Args:
        codec: "lz4": decompresses at some GB/s a thread. "zstd": makes text and features smaller still, and takes
            longer to read. "auto": the writer holds the first values back (at most 1,024, or 8 MiB), tries both on
            them, and takes what a thread needs least time for, with a disk that gives it 200 MB/s; or neither, if none
            pays. `Writer.compression` then says what it is, and why.
        level: How hard zstd tries, 1 to 22; 3 by default. Reading is as quick with any.
        dictionary: For zstd and values of some KB at most that are alike: True, or at most so many bytes, trains a
            dictionary from the first values (at most 16,384, or 8 MiB), which the file then holds.

    Values that do not get smaller are stored as they are. Batches are decompressed on all threads, straight to where
    they are wanted; what is stored is checked against its CRC first, always.

    Raises:
        ValueError: an unknown codec, a level or size out of range, or one that the codec does not have.
        TypeError: a codec that is no str, a level that is no int.
    """

    codec: str
    level: int | None = None
    dictionary: bool | int = False

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str):
            raise TypeError(f"a codec is one of {', '.join(_CODECS)}, not {self.codec!r}")
        if self.codec not in _CODECS:
            raise ValueError(f"a codec is one of {', '.join(_CODECS)}, not {self.codec!r}")
        if self.codec != "zstd":
            if self.level is not None or self.dictionary is not False:
                raise ValueError(f"level and dictionary are zstd's, {self.codec} has none")
            return
        if self.level is None:
            object.__setattr__(self, "level", _DEFAULT_LEVEL)
        if isinstance(self.level, bool) or not isinstance(self.level, int):
            raise TypeError(f"a level is an int, not {self.level!r}")
        if self.level not in _LEVELS:
            raise ValueError(f"zstd has the levels 1 to 22, not {self.level}")
        if not isinstance(self.dictionary, int):
            raise TypeError(f"dictionary is True, False or a number of bytes, not {self.dictionary!r}")
        if not isinstance(self.dictionary, bool) and self.dictionary not in _DICTIONARIES:
            raise ValueError(f"a dictionary has {_DICTIONARIES[0]} to {_DICTIONARIES[-1]} bytes, not {self.dictionary}")

    def __repr__(self) -> str:
        """Return it as one would write it."""
        level = "" if self.level is None else f", level={self.level}"
        dictionary = "" if self.dictionary is False else f", dictionary={self.dictionary}"
        return f'Compression("{self.codec}"{level}{dictionary})'

    def __str__(self) -> str:
        """Return it as messages and `fastrecord info` show it: zstd level 3, dictionary."""
        level = "" if self.level is None else f" level {self.level}"
        return f"{self.codec}{level}{', dictionary' if self.dictionary is not False else ''}"

    @classmethod
    def of(cls, given: Compression | str | None) -> Compression | None:
        """Return what a field type is given as its compression: None, a Compression, or the name of a codec."""
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
