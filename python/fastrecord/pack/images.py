"""`pack_folder`: packs a folder of images, or the files of a list, into one or several files."""

from __future__ import annotations

import os
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fastrecord._core import FastRecordError, Writer
from fastrecord.errors import Code
from fastrecord.files.shard_names import Part
from fastrecord.names import as_name
from fastrecord.pack.division import plan, usual_shards
from fastrecord.pack.listing import UNREADABLE, Listing, list_csv, list_folder
from fastrecord.pack.listing_packer import ListingPacker
from fastrecord.pack.output import Labels, Target, class_table, number_labels, open_target
from fastrecord.pack.packer import BadFiles, Mode, PackProgress, PackSummary, check_options, destination
from fastrecord.pack.pairs import pack_pairs
from fastrecord.recode import Recode
from fastrecord.schema import FieldType, Schema, image, int64, string
from fastrecord.store import is_url
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.files.upload import Upload

__all__ = ["BadFiles", "PackProgress", "PackSummary", "pack_folder", "pack_pairs"]


def pack_folder(
    src: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    append: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    list_path: str | os.PathLike[str] | None = None,
    mapping: Mapping[str, str] | None = None,
    types: Mapping[str, FieldType | str] | None = None,
    fill: Mapping[str, Any] | None = None,
    classes_from: str | os.PathLike[str] | None = None,
    bad_files: BadFiles = "stop",
    allow_empty_classes: bool = False,
    shards: int | None = None,
    shard_size: int | None = None,
    short_side: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    raw: bool = False,
    crop_ready: str | None = None,
    crop_index: bool = False,
    sixteen_bit: str | None = None,
    commit_bytes: int = 1 << 30,
    staging: str | os.PathLike[str] | None = None,
    store_options: Mapping[str, Any] | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Pack image files, byte for byte unless options request changes.

    A record has an image, a label (int64; absent if a list has no labels) and a key (path relative
    to `src`, with `/`). Records have the order of `torchvision.datasets.ImageFolder`, or of the
    list. Before its last commit a file has `complete: false`.

    Args:
        src: Folder with one sub-folder per class, or any folder that holds the files of the list. Or
            the URL of a folder of class folders in an object store.
        out: File to write. With shards, `train.frec` stands for `train-00000-of-00004.frec` and so
            on. Or a URL: the folder of a data set in an object store, whose shards have about 256 MiB
            by default, or one .frec file (docs/stores.md).
        append: Add records to `out`. Its classes keep their numbers; new classes get the next ones.
        resume: Continue a killed or interrupted pack, or append, of the same input; begin if there
            is nothing yet.
        overwrite: Replace `out`, or all its shards, once packing has succeeded.
        list_path: CSV list of the files, their labels, and more columns, which become fields; see
            `fastrecord.pack.listing.list_csv`.
        mapping: With a list: fields to store, as for `fastrecord.import_records`.
        types: With a list: types of fields, likewise.
        fill: With a list: values for empty cells, likewise.
        classes_from: .frec file whose classes define the label numbers; unknown classes are an
            error.
        bad_files: "stop": a file that is not an image, or cannot be read, ends the pack. "skip": it
            is left out, and listed in the summary and under "skipped" in the metadata.
        allow_empty_classes: Keep class folders without files as classes without records.
        shards: Number of files to write, whose numbers of records differ by at most one. When all are
            complete, the folder's `dataset.json` names them, unless other .frec files lie there
            (docs/manifest.md).
        shard_size: Maximum size of a shard in bytes (unless a single record is larger). Not with
            options that change images, because their sizes are known too late.
        short_side: Shrink images whose shorter side is above this many pixels, and store them as
            JPEGs. These keep only the orientation of their metadata. All other images keep their
            bytes.
        max_side: The same for the longer side.
        quality: Quality of these JPEGs, 1 to 100; 90 by default.
        raw: Store all images as their pixels, in binary PPM; images above `short_side` or
            `max_side` are shrunk.
        crop_ready: Rewrite JPEGs without loss, so that a crop is decoded without the rest of its
            image. The value selects the marker segments to keep: "all", "none", or a
            comma-separated list of "exif", "icc" and "other".
        crop_index: Store a crop index after each JPEG that gains by one, so that a crop is decoded
            without most of its image. The bytes of the JPEG do not change. Not with `raw` or
            `crop_ready`.
        sixteen_bit: How 16-bit grey images are converted if they are decoded: "scale" divides by
            257 and rounds, "clip" maps all values above 255 to white, as Pillow does. By default
            such a file is a bad file.
        commit_bytes: Commit durably each time this many bytes have been written.
        staging: For a URL: the folder in which shards are made before they are sent; at most three
            at a time. By default where temporary files belong.
        store_options: For a URL, as for `FastRecordDataset`.
        progress: Called a few times a second; an exception in it ends the pack.

    Raises:
        ValueError: options contradict each other.
        FileExistsError: `out` exists, without `append`, `resume` or `overwrite`.
        FileNotFoundError: it does not exist, and `append` is given.
        LockedError: another process writes to `out`.
        FastRecordError: the input or `out` is not valid for this pack; the message has the name and
            the way out.
        OSError: reading a folder or writing failed. A file without any commit is removed; else it
            stays at its last commit.
        KeyboardInterrupt: Ctrl-C. The packed records are committed (or dropped, if they were to
            replace a file), and `resume` continues after them. A second Ctrl-C does not wait for
            the commit: the file stays at its previous commit.
    """
    started = time.perf_counter()
    mode = check_options(append, resume, overwrite, bad_files, shards, shard_size, commit_bytes, out, staging)
    if append and classes_from is not None:
        raise ValueError("with append the file keeps its own classes: leave out classes_from")
    if list_path is not None and allow_empty_classes:
        raise ValueError("a list has no class folders: leave out allow_empty_classes")
    recode = Recode(
        short_side=short_side,
        max_side=max_side,
        quality=quality,
        raw=raw,
        crop_ready=crop_ready,
        crop_index=crop_index,
        sixteen_bit=sixteen_bit,
    )
    if shard_size is not None and recode.changes:
        raise ValueError("changed images have no known size before packing: give shards, not shard_size")
    listing = None
    if list_path is not None and not is_url(src):
        listing = list_csv(os.fspath(src), os.fspath(list_path))
    if listing is not None and (listing.columns or mapping or types or fill):
        # Imported here: packing a folder needs no numpy.
        from fastrecord.pack.list_source import ListSource
        from fastrecord.pack.records import Chosen, store

        return store(
            ListSource(listing),
            os.fspath(out),
            os.fspath(list_path or ""),
            mode,
            Chosen("list", mapping or None, types, {}, None, recode, fill or {}),
            classes_from=None if classes_from is None else os.fspath(classes_from),
            bad_files=bad_files,
            shards=shards,
            shard_size=shard_size,
            commit_bytes=commit_bytes,
            staging=staging,
            store_options=store_options,
            progress=progress,
            started=started,
        )
    if mapping or types or fill:
        raise ValueError("mapping, types and fill are for the columns of a list: give list_path")
    sharded = shards is not None or shard_size is not None
    with destination(out, mode, sharded=sharded, staging=staging, options=store_options) as (target, how, upload):
        known = None if upload is None else upload.classes
        job = ImageJob.of(
            src,
            target,
            list_path,
            classes_from,
            recode,
            bad_files,
            allow_empty_classes=allow_empty_classes,
            known=known,
            store_options=store_options,
        )
        if upload is not None and not (sharded or upload.is_file):
            shards = usual_shards(job.listing)
        parts = plan(job.listing, target, shards=shards, shard_size=shard_size)
        summary = job.run(parts, target, how, commit_bytes, progress, started, upload=upload)
    summary.empty_classes = job.empty_classes(summary.skipped)
    return summary


@dataclass(frozen=True, slots=True)
class ImageJob:
    """Images to pack, and how.

    Attributes:
        listing: The files.
        labels: The label of each, int64 (N,), or None.
        classes: Class names, position = label; None if labels are plain numbers or absent.
        recode: How images are stored.
        bad_files: Whether a bad file ends the pack.
    """

    listing: Listing
    labels: Labels | None
    classes: list[str] | None
    recode: Recode
    bad_files: BadFiles

    @classmethod
    def of(
        cls,
        src: str | os.PathLike[str],
        out: str,
        list_path: str | os.PathLike[str] | None,
        classes_from: str | os.PathLike[str] | None,
        recode: Recode,
        bad_files: BadFiles,
        *,
        allow_empty_classes: bool,
        known: list[str] | None = None,
        store_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """List the files. The arguments have the same meaning as in `pack_folder`.

        The classes `known` are those of a data set that these are added to; they keep their numbers.

        Raises:
            FastRecordError, OSError: as `pack_folder`, for its input.
        """
        source = Url(os.fspath(src))
        listing: Listing
        if is_url(source):
            if list_path is not None:
                raise ValueError(f"{Url(source)}: a list names files of this machine: leave out list_path")
            from fastrecord.pack.bucket import list_bucket
            from fastrecord.store.requests import Store

            listing = list_bucket(Store.of(source, store_options), allow_empty_classes=allow_empty_classes)
        elif list_path is not None:
            listing = list_csv(source, os.fspath(list_path))
        else:
            listing = list_folder(source, allow_empty_classes=allow_empty_classes)
            _refuse_inside(out, listing)
        return cls.of_listing(listing, out, classes_from, recode, bad_files, known=known)

    @classmethod
    def of_listing(
        cls,
        listing: Listing,
        out: str,
        classes_from: str | os.PathLike[str] | None,
        recode: Recode,
        bad_files: BadFiles,
        *,
        known: list[str] | None = None,
    ) -> Self:
        """Number the classes of listed files. The arguments have the same meaning as in `of`.

        Raises:
            FastRecordError, OSError: as `pack_folder`, for its input.
        """
        _ImagePacker(listing, bad_files, recode, 1, None, 0).refuse_bad()
        extend = known is not None
        if classes_from is not None:
            known = class_table(os.fspath(classes_from))
        labels, classes = number_labels(listing, known, str(classes_from or out), extend=extend)
        return cls(listing, labels, classes, recode, bad_files)

    def cut(self, start: int, stop: int) -> Self:
        """Return the job of some of the files, which may also be pickled."""
        labels = None if self.labels is None else self.labels[start:stop]
        return replace(self, listing=self.listing.cut(start, stop), labels=labels)

    def run(
        self,
        parts: Sequence[Part],
        out: str,
        mode: Mode,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        started: float,
        *,
        may_be_empty: bool = False,
        upload: Upload | None = None,
    ) -> PackSummary:
        """Pack the files.

        Args:
            parts: The files to write.
            out: The caller's name for them.
            mode: What to do with existing ones.
            commit_bytes: As for `pack_folder`.
            progress: Likewise.
            started: When the pack began, by `time.perf_counter`.
            may_be_empty: Whether all files may be skipped.
            upload: The way to a store.

        Raises:
            FastRecordError, OSError, KeyboardInterrupt: as `pack_folder`.
        """
        packer = _ImagePacker(self.listing, self.bad_files, self.recode, commit_bytes, progress, started)
        packer.may_be_empty, packer.upload = may_be_empty, upload
        if upload is not None:
            # As the input has them: the numbers of classes may depend on the data set that is added to.
            labels = None if self.listing.labels is None else list(self.listing.labels)
            packer.identity = [self.listing.keys, labels, self.listing.classes, self.recode.entry()]
        schema = _schema(labelled=self.labels is not None)
        return packer.run(
            parts,
            out,
            mode,
            lambda part: open_target(part, mode, self.listing, schema, self.labels, self.classes, self.recode),
        )

    def empty_classes(self, skipped: Sequence[tuple[str, str]]) -> list[str]:
        """Return the classes without any packed file."""
        return _empty_classes(self.listing, {key for key, _ in skipped})


class _ImagePacker(ListingPacker):
    """Packs one image per record."""

    may_be_empty = False

    def __init__(
        self,
        listing: Listing,
        bad_files: BadFiles,
        recode: Recode,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        started: float,
    ) -> None:
        super().__init__(listing, bad_files, commit_bytes, progress, changes=recode.changes, started=started)
        self.recode = recode

    def append(self, positions: range, target: Target, writer: Writer) -> None:
        with self.listing.at_hand(positions):
            self._append(positions, target, writer)

    def _append(self, positions: range, target: Target, writer: Writer) -> None:
        listing = self.listing
        if listing.list_path is not None:
            listing.find_irregular(positions)
        readable: Sequence[int] = positions
        if listing.bad:
            readable = [i for i in positions if listing.keys[i] not in listing.bad]
        values: dict[str, Sequence[Any]] = {"key": [listing.keys[i] for i in readable]}
        if target.labels is not None:
            values["label"] = array("q", [target.labels[i] for i in readable])
        # Append also when the first bad file ends the pack: this finds its position in the list,
        # and the abort drops what was appended after it.
        paths = [listing.path(i) for i in readable]
        failed = writer.append_files("image", paths, values, on_error="skip", recode=self.recode)
        reasons = {readable[at]: _reason(listing, readable[at], message) for at, message in failed}
        if listing.bad:
            reasons |= {i: listing.bad[key] for i in positions if (key := listing.keys[i]) in listing.bad}
        if reasons and self.bad_files == "stop":
            raise self.describe_bad(*min(reasons.items()))
        target.skipped += [(listing.keys[i], reasons[i]) for i in sorted(reasons)]

    def describe_bad(self, position: int, reason: str) -> FastRecordError:
        if reason.startswith(UNREADABLE):
            way_out = "make it readable, or leave out all such files with `--bad-files skip`"
        else:
            way_out = "remove the file, or leave out all such files with `--bad-files skip`"
        return Code.BAD_FILE.error(f"{self.listing.describe(position)}: {reason}: {way_out}")

    def nothing(self, part: Part, target: Target) -> FastRecordError | None:
        return None if self.may_be_empty else super().nothing(part, target)

    def count(self, writer: Writer) -> None:
        self.count_foreign(writer.foreign)
        if self.changes:
            before = self.summary.recoded or {}
            self.summary.recoded = {name: count + before.get(name, 0) for name, count in writer.recoded.items()}


def _schema(*, labelled: bool) -> Schema:
    fields: dict[str, FieldType] = {"image": image()}
    if labelled:
        fields["label"] = int64()
    return Schema(fields | {"key": string()})


def _refuse_inside(out: str, listing: Listing) -> None:
    relative = os.path.relpath(os.path.realpath(out), os.path.realpath(listing.source)).split(os.sep)
    if len(relative) > 1 and relative[0] in map(as_name, listing.classes or ()):
        raise Code.OUTPUT_IS_INPUT.error(
            f"{out}: lies in the class folder {relative[0]!r} that it is made from: choose a path outside"
        )


def _reason(listing: Listing, position: int, message: str) -> str:
    """Return the core's message about a file without its path and the system's error number."""
    text = message.removeprefix(f"{listing.path(position)}: ")
    plain = re.sub(r" \(os error \d+\)$", "", text)
    return plain if plain == text else f"{UNREADABLE}: {plain}"


def _empty_classes(listing: Listing, skipped: set[str]) -> list[str]:
    if listing.classes is None or listing.labels is None:
        return []
    counts = Counter(listing.labels)
    if skipped:
        counts -= Counter(label for key, label in zip(listing.keys, listing.labels, strict=True) if key in skipped)
    return [name for label, name in enumerate(listing.classes) if not counts[label]]
