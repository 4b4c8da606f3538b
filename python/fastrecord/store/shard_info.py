"""`ShardInfo`: what is known of a file before it is opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard, as a manifest names it.

    Attributes:
        name: Its file name in the folder of the manifest.
        file_id: Its id, 32 hexadecimal digits.
        commit: The commit that belongs to the data set; later ones do not.
        records: Its records at that commit.
        bytes: Its bytes up to the end of that commit.
        footer_crc: CRC-32C of the footer: the last 4,096 of them, without its own checksum at the end.
    """

    name: str
    file_id: str
    commit: int
    records: int
    bytes: int
    footer_crc: int

    @property
    def about(self) -> tuple[str, int, int, int, int]:
        """All but the name: what `open_shard` needs to know."""
        return self.file_id, self.commit, self.records, self.bytes, self.footer_crc
