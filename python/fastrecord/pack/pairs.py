"""`pack_pairs`: packs pairs of images of one scene at two resolutions, as files or as pixels."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fastrecord._core import DecodeError, FastRecordError, Reader, Writer, decode_image, default_threads, foreign_kind
from fastrecord.errors import Code, plain
from fastrecord.names import name_some
from fastrecord.pack.division import plan, usual_shards
from fastrecord.pack.listing import UNREADABLE
from fastrecord.pack.listing_packer import ListingPacker
from fastrecord.pack.output import Target, open_target
from fastrecord.pack.packer import BadFiles, PackProgress, PackSummary, check_options, destination
from fastrecord.pack.pair_listing import Pairing, PairListing, common_scale, list_pairs, measure
from fastrecord.schema import FieldType, Schema, array, image, string
from fastrecord.store.threads import Threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastrecord.files.upload import Upload

Pair = tuple[Any, Any]

# Arrays of at most this many bytes are stored in an index column, uncompressed.
_IN_COLUMNS = 64


class Stored(NamedTuple):
    """The file to append to: its name, and the scale of its pairs if they have one."""

    path: str
    scale: object


def pack_pairs(
    lr: str | os.PathLike[str],
    hr: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    append: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    decode: bool = False,
    compression: str | None = None,
    any_scale: bool = False,
    sixteen_bit: str | None = None,
    bad_files: BadFiles = "stop",
    shards: int | None = None,
    shard_size: int | None = None,
    commit_bytes: int = 1 << 30,
    staging: str | os.PathLike[str] | None = None,
    store_options: Mapping[str, Any] | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Pack the images of two folders in pairs, matched by name (`pair_listing.list_pairs`).

    A record has the smaller image `lr`, the larger image `hr`, and a key: the path of the larger
    image in its folder, without extension. Images are stored as their files, byte for byte, or as
    arrays, uint8 (height, width, 3). The arrays have exactly the pixels of
    `fastrecord.decode_image`: grey is repeated, alpha is dropped, 16-bit colours become 8-bit.
    Arrays have a fixed shape in the schema if all images of that side have one size.

    The sizes of all images are read first. The size of each larger image must be a whole multiple
    of its partner's size. The factor is stored under "scale" in the metadata.

    Args:
        lr: Folder of the smaller images, including its sub-folders.
        hr: Folder of the larger ones.
        out: File to write, or a URL. With shards, `train.frec` stands for
            `train-00000-of-00004.frec` and so on.
        append: As in `fastrecord.pack_folder`.
        resume: Likewise.
        overwrite: Likewise.
        decode: Store pixels.
        compression: Compress them: "lz4", "zstd", or "auto", which measures on the first ones and
            may choose none.
        any_scale: Accept pairs of any sizes; the metadata then has "scale" only if all pairs share
            it.
        sixteen_bit: With `decode`, how 16-bit grey is converted: "scale" divides by 257 and rounds,
            "clip" maps all values above 255 to white, as Pillow does. By default such a pair is a
            bad pair.
        bad_files: "stop": a bad pair ends the pack. A pair is bad if a partner is missing, a file
            is not an image or cannot be read, or its scale differs from most pairs. "skip": the
            pair is left out, and listed in the summary and under "skipped" in the metadata. (Images
            that cannot be decoded are found only if they are decoded.)
        shards: Number of files to write, whose numbers of records differ by at most one.
        shard_size: Maximum size of a shard in bytes (unless a single record is larger).
        commit_bytes: Commit durably each time this many bytes have been written.
        staging: As in `fastrecord.pack_folder`.
        store_options: Likewise.
        progress: Called a few times a second, first with the stage "sizes"; an exception in it ends
            the pack.

    Raises:
        As `fastrecord.pack_folder` does.
    """
    started = time.perf_counter()
    mode = check_options(append, resume, overwrite, bad_files, shards, shard_size, commit_bytes, out, staging)
    if compression is not None and not decode:
        raise ValueError("images are already compressed: compression belongs to decode")
    if sixteen_bit is not None and not decode:
        raise ValueError("files are stored unchanged: sixteen_bit belongs to decode")
    if compression is not None and shard_size is not None:
        raise ValueError("compressed pixels have no known size before packing: give shards, not shard_size")
    pairing = Pairing(decode, compression, sixteen_bit)
    listing = list_pairs(os.fspath(lr), os.fspath(hr), decode=decode)
    sharded = shards is not None or shard_size is not None
    with (
        destination(out, mode, sharded=sharded, staging=staging, options=store_options) as (target, how, upload),
        contextlib.closing(Threads(default_threads(), "fastrecord-pairs")) as pool,
    ):
        _refuse_inside(target, listing)
        packer = _PairPacker(listing, bad_files, pairing, commit_bytes, progress, started, pool)
        packer.refuse_unmatched()
        packer.measure()
        packer.refuse_bad()
        packer.check_scale(_stored(target, upload) if append else None, any_scale=any_scale)
        schema = _schema(listing, pairing)
        facts = {"scale": packer.summary.scale}
        packer.upload, packer.identity = upload, [listing.keys, pairing.entry(), facts]
        if upload is not None and not (sharded or upload.is_file):
            shards = usual_shards(listing)
        parts = plan(listing, target, shards=shards, shard_size=shard_size)
        return packer.run(
            parts, target, how, lambda part: open_target(part, how, listing, schema, None, None, pairing, facts)
        )


class _PairPacker(ListingPacker):
    """Packs two images per record."""

    inputs = "pairs is one of two images"
    listing: PairListing

    def __init__(
        self,
        listing: PairListing,
        bad_files: BadFiles,
        pairing: Pairing,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        started: float,
        pool: Threads,
    ) -> None:
        super().__init__(listing, bad_files, commit_bytes, progress, changes=True, started=started)
        self.pairing, self.pool = pairing, pool

    def refuse_unmatched(self) -> None:
        """Raise the error for files without a partner, if bad files end the pack."""
        if self.listing.unmatched and self.bad_files == "stop":
            by_reason: dict[str, list[str]] = {}
            for key, reason in self.listing.unmatched.items():
                by_reason.setdefault(reason, []).append(key)
            found = "; ".join(f"{reason}: {name_some(keys)}" for reason, keys in by_reason.items())
            raise Code.NO_PARTNER.error(
                f"{self.listing.lr_source} and {self.listing.source}: {len(self.listing.unmatched):,} of "
                f"{len(self.listing):,} names have no partner: {found}: add what is missing, or leave these out with "
                "`--bad-files skip`"
            )

    def measure(self) -> None:
        """Read the sizes of all images."""

        def report(position: int) -> None:
            if self.progress is not None:
                self.progress(PackProgress(position, len(self.listing), 0, "sizes"))

        measure(self.listing, report)

    def check_scale(self, stored: Stored | None, *, any_scale: bool) -> None:
        """Find the scale of the pairs, and skip or refuse pairs that have another.

        Args:
            stored: The file to append to.
            any_scale: Accept all pairs.
        """
        scale, others = common_scale(self.listing)
        one = scale if len(others) == 0 else None
        if any_scale:
            self.summary.scale = one if stored is None or stored.scale == one else None
            return
        if stored is not None and stored.scale != scale:
            raise Code.OTHER_SCALE.error(
                f"{stored.path}: its pairs have {_scale_text(stored.scale)}, those to append {_scale_text(scale)}: "
                "`--any-scale` adds them anyway"
            )
        for position in others.tolist():
            height, width, high, wide = self.listing.sizes[position].tolist()
            what = "no whole number of" if scale is None else f"not {scale}"
            swapped = ": are LR_DIR and HR_DIR in the wrong order?" if high < height else ""
            reason = f"hr is {high} x {wide}, which is {what} times lr, {height} x {width}{swapped}"
            if self.bad_files == "stop" or scale is None:
                raise Code.OTHER_SCALE.error(
                    f"{self.listing.describe(position)}: {reason}: `--any-scale` takes pairs of any sizes, "
                    "`--bad-files skip` leaves out pairs of another scale than most"
                )
            self.listing.bad[self.listing.keys[position]] = reason
        self.summary.scale = scale

    def append(self, positions: range, target: Target, writer: Writer) -> None:
        keys, bad = self.listing.keys, self.listing.bad
        reasons = {i: bad[keys[i]] for i in positions if keys[i] in bad}
        wanted = [i for i in positions if i not in reasons]
        found = dict(zip(wanted, self._load(wanted), strict=True))
        reasons |= {i: pair for i, pair in found.items() if isinstance(pair, str)}
        if reasons and self.bad_files == "stop":
            raise self.describe_bad(*min(reasons.items()))
        whole = {i: pair for i, pair in found.items() if not isinstance(pair, str)}
        if whole:
            low, high = zip(*whole.values(), strict=True)
            if not self.pairing.decode:
                self.count_foreign(Counter(filter(None, map(foreign_kind, chain(low, high)))))
            writer.extend({"lr": low, "hr": high, "key": [keys[i] for i in whole]})
        target.skipped += [(keys[i], reasons[i]) for i in sorted(reasons)]

    def describe_bad(self, position: int, reason: str) -> FastRecordError:
        if UNREADABLE in reason:
            way_out = "make it readable, or leave out all such pairs with `--bad-files skip`"
        else:
            way_out = "remove the pair, or leave out all such pairs with `--bad-files skip`"
        return Code.BAD_FILE.error(f"{self.listing.describe(position)}: {reason}: {way_out}")

    def _load(self, positions: Sequence[int]) -> list[Pair | str]:
        """Return the stored form of each pair, or the reason for an error; on all threads."""
        size = max(1, -(-len(positions) // (4 * default_threads())))
        runs = [positions[start : start + size] for start in range(0, len(positions), size)]
        return list(chain.from_iterable(self.pool.map(lambda run: [self._load_one(i) for i in run], runs)))

    def _decode(self, data: bytes) -> NDArray[np.uint8]:
        return decode_image(data, sixteen_bit=self.pairing.sixteen_bit or "reject")

    def _load_one(self, position: int) -> Pair | str:
        values: list[Any] = []
        for side, path in zip(("lr", "hr"), self.listing.paths(position), strict=True):
            try:
                with open(path, "rb", buffering=0) as file:
                    data = file.readall()
                values.append(self._decode(data) if self.pairing.decode else data)
            except OSError as err:
                return f"{side}: {UNREADABLE}: {err.strerror or err}"
            except DecodeError as err:
                return f"{side}: {plain(err)}"
        return values[0], values[1]


def _schema(listing: PairListing, pairing: Pairing) -> Schema:
    if not pairing.decode:
        return Schema({"lr": image(), "hr": image(), "key": string()})
    import numpy as np

    sizes = listing.sizes[listing.good()]
    fields: dict[str, FieldType] = {}
    for name, columns in (("lr", slice(0, 2)), ("hr", slice(2, 4))):
        distinct = np.unique(sizes[:, columns], axis=0).tolist()
        shape: tuple[int | None, ...] = (*distinct[0], 3) if len(distinct) == 1 else (None, None, 3)
        fields[name] = array("uint8", shape, pairing.compression)
        if (fields[name].nbytes or _IN_COLUMNS + 1) <= _IN_COLUMNS:
            fields[name] = array("uint8", shape)
    return Schema(fields | {"key": string()})


def _stored(path: str, upload: Upload | None) -> Stored | None:
    if upload is not None:
        found = upload.metadata()
        return None if found is None else Stored(upload.url, found.get("scale"))
    with Reader(path) as reader:
        return Stored(path, reader.metadata.get("scale"))


def _scale_text(scale: object) -> str:
    return "no one scale" if scale is None else f"the scale {scale}"


def _refuse_inside(out: str, listing: PairListing) -> None:
    place = os.path.realpath(out)
    for folder in (listing.lr_source, listing.source):
        if os.path.commonpath([place, os.path.realpath(folder)]) == os.path.realpath(folder):
            raise Code.OUTPUT_IS_INPUT.error(f"{out}: lies in {folder}, which it is made from: choose a path outside")
