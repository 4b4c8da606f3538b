"""`index`: adds the crop index to the images of an existing file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fastrecord._core import Reader, add_crop_index
from fastrecord.errors import Code
from fastrecord.files.manifest import name_new_shards
from fastrecord.files.places import refuse_url


@dataclass(slots=True)
class IndexSummary:
    """Result of indexing a file.

    Attributes:
        path: The file.
        fields: Its fields of images that were indexed.
        images: Number of images in them.
        indexed: Images that got a crop index.
        present: Images that had one before.
        without: Images without one, because they gain nothing or are of a kind that has none.
        packed: Packed JPEGs, which need none: their crops are decoded alone anyway.
        bytes: Size of the new indexes.
        seconds: Wall time.
    """

    path: str
    fields: list[str] = field(default_factory=list)
    images: int = 0
    indexed: int = 0
    present: int = 0
    without: int = 0
    packed: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


def index(
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    rebuild: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> IndexSummary:
    """Add the crop index to the JPEGs of a file, so that a crop is decoded without most of its image.

    The images keep their bytes, and nothing that is in the file is rewritten. It works on all CPUs
    and commits every 20 seconds. After a kill or an error the file is at its last commit, and
    another call continues there. Open readers and data sets keep their snapshot; `refresh()` shows
    the index.

    Args:
        path: The .frec file. No writer may have it open; readers may.
        field: Field of type image to index. By default all of them.
        rebuild: Make all indexes again, which replaces damaged ones. By default images that have an
            index are left alone.
        progress: Called now and then with images done and images in total; an exception in it ends
            the work after a commit.

    Raises:
        SchemaError: no such field, or none of type image.
        CorruptFileError: an image, or the index, is damaged; names the record. Records before it
            are done.
        FileNotFoundError, LockedError: as `Writer` in mode "a". OSError: a read or a write failed.
        KeyboardInterrupt: Ctrl-C. What was done is committed.
    """
    started = time.perf_counter()
    refuse_url(path)
    name = os.fspath(path)
    with Reader(path) as reader:
        images, records = [key for key, kind in reader.schema.items() if kind.name == "image"], len(reader)
        fields = images if field is None else [key for key in images if key == field]
        if not fields:
            wanted = "field" if field is None else f"field {field!r}"
            raise Code.NO_FIELD.error(f"{name}: no {wanted} of type image: the file has {images or 'none'}")
    summary = IndexSummary(name, fields, records * len(fields))
    for number, each in enumerate(fields):

        def report(done: int, before: int = number * records) -> None:
            if progress is not None:
                progress(before + done, summary.images)

        try:
            counts = add_crop_index(path, each, rebuild=rebuild, progress=report)
        except KeyboardInterrupt as err:
            message = f"{name}: what was indexed is committed, and `fastrecord index` continues from there"
            raise KeyboardInterrupt(message) from err
        summary.indexed += counts["indexed"]
        summary.present += counts["present"]
        summary.without += counts["without"]
        summary.packed += counts["packed"]
        summary.bytes += counts["bytes"]
    name_new_shards([name], only_renew=True)
    summary.seconds = time.perf_counter() - started
    return summary
