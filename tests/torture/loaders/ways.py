"""Ways to use and end loaders, readers and data sets: none may leave anything, whatever happens."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from torch.utils.data import DataLoader

import fastrecord as fr
from fastrecord.transforms import RandomResizedCrop
from tests.support.loading import loader_of
from tests.torture import known

# All worker processes so far.
WORKERS: set[int] = set()
_RECORDS = 40
_BAD = 25


@dataclass(frozen=True)
class Files:
    """The files that the ways read.

    Attributes:
        good: Records of tests/torture/known.py.
        bad: The same with an undecodable image.
        damaged: The same with a flipped bit in an array.
        no_file: Bytes that are not a .frec file.
        scratch: A path to write to.
    """

    good: Path
    bad: Path
    damaged: Path
    no_file: Path
    scratch: Path


def write_files(folder: Path) -> Files:
    """Write these files."""
    files = Files(*(folder / f"{name}.frec" for name in ("good", "bad", "damaged", "none", "scratch")))
    records = [known.record(1, number, known.SCHEMA) for number in range(_RECORDS)]
    with fr.Writer(files.good, known.SCHEMA) as writer, fr.Writer(files.bad, known.SCHEMA) as other:
        for values in records:
            writer.append(values)
        # Its headers are right, but its data are missing.
        image = records[_BAD]["image"]
        records[_BAD]["image"] = image[: image.index(b"\xff\xda") + 20]
        for values in records:
            other.append(values)
    content = bytearray(files.good.read_bytes())
    array = known.value(1, _BAD, "pixels").tobytes()
    content[content.index(array) + 10] ^= 4
    files.damaged.write_bytes(content)
    files.no_file.write_bytes(b"no" * 5000)
    return files


def images(path: Path, **options: Any) -> fr.FastRecordLoader:
    """Return a loader of images with batches of 100 KB."""
    data = fr.FastRecordDataset(path, fields=("image", "label", "key"))
    return loader_of(data, 8, **{"sample": RandomResizedCrop(64), "shuffle": True, **options})


def arrays(path: Path, **options: Any) -> fr.FastRecordLoader:
    """Return a loader of all kinds of fields except images."""
    data = fr.FastRecordDataset(path, fields=known.ARRAY_FIELDS)
    return loader_of(data, 8, **{"shuffle": True, **options})


def good(files: Files, draw: Random, **options: Any) -> fr.FastRecordLoader:
    """Return a loader of good records."""
    return draw.choice((images, arrays))(files.good, **options)


def bad(files: Files, draw: Random, **options: Any) -> fr.FastRecordLoader:
    """Return a loader that hits an undecodable or damaged record."""
    make, path = draw.choice(((images, files.bad), (arrays, files.damaged)))
    return make(path, **options)


class ConsumerError(Exception):
    """An error from a training loop."""


def _raise(*_: object) -> Any:
    raise ConsumerError("out of luck")


def whole(files: Files, draw: Random) -> None:
    """Iterate twice to the end."""
    loader = good(files, draw)
    for _ in range(2):
        for _ in loader:
            pass


def broken_off(files: Files, draw: Random) -> None:
    """Leave the loop after some batches."""
    for number, _ in enumerate(good(files, draw, prefetch=draw.randrange(4))):
        if number == draw.randrange(5):
            break


def never_begun(files: Files, draw: Random) -> None:
    """Make a loader and an iterator, and drop both."""
    iter(good(files, draw))


def in_a_cycle(files: Files, draw: Random) -> None:
    """Leave loader and iterator to the garbage collector."""
    loader: Any = good(files, draw)
    batches = iter(loader)
    loader.__dict__.update(me=loader, batches=batches, batch=next(batches))


def kept(files: Files, draw: Random) -> None:
    """Keep batches beyond their loader, iterator and data set."""
    batches = list(itertools.islice(good(files, draw), draw.randrange(1, 6)))
    gc.collect(0)
    if len(batches[0]) < 2:
        raise known.WrongDataError("no batch")


def closed(files: Files, draw: Random) -> None:
    """Close the loader during an iteration, which then raises."""
    with good(files, draw, prefetch=0) as loader:
        batches = iter(loader)
        next(batches)
    with suppress(RuntimeError):
        list(batches)


def failed(files: Files, draw: Random) -> None:
    """Hit an undecodable or damaged record, and keep the error and its frames for a while."""
    held = None
    try:
        for _ in bad(files, draw):
            pass
    except fr.FastRecordError as error:
        held = error
    if held is None:
        raise known.WrongDataError("no error")


def skipped(files: Files, draw: Random) -> None:
    """Skip such a record."""
    loader = bad(files, draw, on_error=draw.choice(("skip", lambda *_: None)))
    for _ in loader:
        pass
    if len(loader.skipped) != 1:
        raise known.WrongDataError(f"skipped {loader.skipped}")


def refused(files: Files, draw: Random) -> None:
    """Raise in the callable that handles failed records."""
    with suppress(ConsumerError):
        list(bad(files, draw, on_error=_raise))


def raised_in_the_loop(files: Files, draw: Random) -> None:
    """Raise in the consumer; the error's frames hold loader, iterator and batch."""
    held = None
    try:
        loader = good(files, draw)
        for batch in loader:
            _raise(batch)
    except ConsumerError as error:
        held = error
    if held is None:
        raise known.WrongDataError("no error")


def raised_in_a_transform(files: Files, draw: Random) -> None:
    """Raise in batch_transform."""
    with suppress(ConsumerError):
        list(good(files, draw, batch_transform=_raise))


def interrupted(files: Files, draw: Random) -> None:
    """Press Ctrl-C at any moment during or after an iteration."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 5e-3))
            for _ in good(files, draw):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def in_a_thread(files: Files, draw: Random) -> None:
    """Iterate in a thread that ends during the iteration."""
    loader = good(files, draw)
    thread = threading.Thread(target=lambda: list(itertools.islice(loader, 2)))
    thread.start()
    thread.join()


def forked(files: Files, draw: Random) -> None:
    """Fork during an iteration."""
    batches = iter(good(files, draw))
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    next(batches)


def pickled(files: Files, draw: Random) -> None:
    """Pickle a loader and a data set."""
    loader = pickle.loads(pickle.dumps(good(files, draw)))
    next(iter(loader))


def read(files: Files, draw: Random) -> None:
    """Use a reader in every way; views outlive it."""
    reader = fr.Reader(files.good, draw.choice(("mmap", "pread")))
    rows = draw.choices(range(_RECORDS), k=10)
    batch = reader.read_batch(rows, verify=draw.random() < 0.5)
    views = [batch["data"].tolist(), batch["wave"].tolist(), reader.column("label"), reader[3], reader.schema]
    reader.refresh()
    with suppress(fr.errors.CorruptFileError):
        fr.Reader(files.damaged).read_batch(range(_RECORDS), verify=True)
    if draw.random() < 0.7:
        reader.close()
    known.compare(1, rows, "data", views[0], "views of a closed reader")


def not_opened(files: Files, draw: Random) -> None:
    """Open something that is not such a file, or is missing."""
    for path in (files.no_file, files.no_file.with_name("nothing"), files.no_file.parent):
        with suppress(fr.errors.CorruptFileError, OSError):
            fr.Reader(path, draw.choice(("mmap", "pread")))


def by_sample(files: Files, draw: Random) -> None:
    """Use data sets and their views record by record."""
    data = fr.FastRecordDataset(files.good, decode=draw.choice(("pil", "native", None)))
    view = data.subset(range(3, 30)).filter("flag", "==", True)
    samples = [view[0], *data.__getitems__([1, 2, 3])]
    with suppress(fr.errors.DecodeError):
        fr.FastRecordDataset(files.bad, decode="native")[_BAD]
    with suppress(IndexError):
        samples.append(data[_RECORDS])


def written(files: Files, draw: Random) -> None:
    """Write a file, or fail to."""
    with suppress(ConsumerError), fr.Writer(files.scratch, known.SCHEMA, "w") as writer:
        for number in range(5):
            writer.append(known.record(2, number, known.SCHEMA))
        with suppress(fr.errors.SchemaError):
            writer.append({"label": "no number"})
        writer.commit()
        with suppress(fr.errors.LockedError, FileNotFoundError):
            fr.Writer(files.scratch, mode="a")
        if draw.random() < 0.5:
            _raise()


def with_workers(files: Files, draw: Random) -> None:
    """Use a DataLoader with workers: to the end, partly, or with a worker error."""
    path, stop = draw.choice(((files.good, 100), (files.good, 1), (files.damaged, 100)))
    data = fr.FastRecordDataset(path, fields=known.ARRAY_FIELDS)
    # torch warns about iterators that the garbage collector finds in a forked worker.
    gc.collect()
    loader = DataLoader(data, 8, num_workers=2, collate_fn=fr.collate)
    with suppress(fr.errors.CorruptFileError):
        for _ in itertools.islice(loader, stop):
            WORKERS.update(child.pid or 0 for child in multiprocessing.active_children())


# Common steps, and slow ones: one slow step per this many common ones.
OFTEN: list[Callable[[Files, Random], None]] = [
    *(whole, broken_off, never_begun, in_a_cycle, kept, closed, failed, skipped, refused, raised_in_the_loop),
    *(raised_in_a_transform, interrupted, in_a_thread, pickled, read, not_opened, by_sample),
]
RARELY: list[Callable[[Files, Random], None]] = [with_workers, forked, written]
RARE = 30
