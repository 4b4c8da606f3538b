"""A data set in an object store: the first epoch, a cache that holds all or a quarter, a slow network.

The store is an S3 server on loopback, `benches/support/s3.py`, which serves the files by `sendfile`:
a server in Python that copies them (moto, of the tests) would be slower than what it measures, and
take the CPUs of the loaders. Its docstring says more. All contenders ask the same server. It has the
data in the page cache, and so have the caches, which lie on the disk of the data.

Batches are records as they are stored, not decoded: decoding would hide the network.

- *The same bytes by obstore alone* repeats the requests that fastrecord has made in an epoch before, by
  as many threads, and drops what comes, or writes it to files. It checks and hands out nothing: a
  yardstick.
- MosaicML Streaming and LitData have shards of their own default size, 64 MB.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fastrecord as fr
from benches.contenders.source import Source
from benches.experiments.interchange import SIZE, make_images
from benches.experiments.scale import SHARDS, make
from benches.harness import Answer, Bench, Contender, Contest
from benches.support.s3 import BUCKET, S3, Asked, options, sent_again, variables

HERE = "benches.experiments.store:"
OURS, LOCAL = "fastrecord", "the files on the disk"
ALONE = "the same bytes by obstore alone"
KEPT = f"{ALONE}, written to files"
BATCH = 64
WORKERS = 2
# Requests in flight at once, as of fastrecord.
PARALLEL = 16
EPOCHS = 3
LATENCY, BANDWIDTH = 0.05, 50e6
SCHEMA = fr.Schema({"image": fr.bytes_(), "label": "int64"})


class Ours:
    """FastRecordLoader over files, or over a store and a cache.

    Args:
        data: A folder, or a URL.
        records: Records of it.
        endpoint: Of the store.
        cache: The folder in which each run has a cache of its own.
        size: Bytes of the cache at most.
        window: Shuffle by blocks, so many of them in a window; 0: shuffle all records.
    """

    version = f"fastrecord {fr.__version__}"

    def __init__(
        self, *, data: str, records: int, endpoint: str = "", cache: str = "", size: int | None = None, window: int = 0
    ) -> None:
        self._data, self._records, self._endpoint, self._cache, self._size = data, records, endpoint, cache, size
        self._shuffle: Any = fr.Blocks(window=window) if window else True
        self._loader: fr.FastRecordLoader | None = None

    def clear(self, number: int) -> None:
        """Forget all of an earlier run."""
        self._loader = None
        if self._cache:
            # This process has them open: they would keep their memory, and the next run would take new memory,
            # which a virtual machine gets from its host page by page.
            for copy in Path(self._cache).glob("*.frec"):
                os.truncate(copy, 0)
            shutil.rmtree(self._cache, ignore_errors=True)
            self._cache = f"{self._cache.partition('#')[0]}#{number}"

    def epoch(self, number: int) -> int:
        """Load an epoch; the first one opens the data set."""
        del number
        if self._loader is None:
            self._loader = self._made()
        images = size = 0
        for batch in self._loader:
            images += len(batch["label"])
            size += sum(map(len, batch["image"]))
        if images != self._records:
            raise ValueError(f"{images} records of {self._records}, {size} bytes")
        return size

    def planned(self) -> dict[str, Any]:
        """Return what the cache is planned to download in each epoch, and the least that any could."""
        loader = self._made()
        from fastrecord.inspect import plan_cache

        plan = plan_cache(loader.batch_sampler, loader.dataset, cache_size=self._size, epochs=EPOCHS)
        return {"bytes": plan.bytes, "best": plan.best_bytes}

    def _made(self) -> Any:
        store = fr.Store(
            options(self._endpoint) if self._endpoint else None,
            self._cache or None,
            self._size if self._cache else None,
        )
        dataset = fr.FastRecordDataset(self._data, fields=("image", "label"), store=store)
        sampler = fr.FastRecordBatchSampler(dataset, BATCH, shuffle=self._shuffle, rank=0, world_size=1)
        return fr.FastRecordLoader(dataset, batch_sampler=sampler)


class Alone:
    """obstore, which makes the requests that are listed in a file.

    Args:
        url, endpoint: The store.
        asked: The list.
        cache: Where answers are written to; "": nowhere.
    """

    def __init__(self, *, url: str, endpoint: str, asked: str, cache: str = "") -> None:
        import obstore

        self.version = f"obstore {version('obstore')}"
        self._store: Any = obstore.store.from_url(url, **options(endpoint))
        self._get, self._asked, self._cache = obstore.get, asked, cache
        self._parts: list[tuple[str, int, int]] = []

    def clear(self, number: int) -> None:
        """Read which requests to make."""
        del number
        shutil.rmtree(self._cache, ignore_errors=True)
        self._parts = [tuple(part) for part in json.loads(Path(self._asked).read_text())]

    def epoch(self, number: int) -> int:
        """Make the requests."""
        del number

        def ask(part: tuple[str, int, int]) -> int:
            name, start, length = part
            data = self._get(self._store, name, options={"range": (start, start + length)}).bytes()
            if self._cache:
                file = os.open(f"{self._cache}/{name}", os.O_WRONLY | os.O_CREAT)
                os.pwrite(file, data, start)
                os.close(file)
            return len(data)

        if self._cache:
            os.makedirs(self._cache, exist_ok=True)
        with ThreadPoolExecutor(PARALLEL) as pool:
            return sum(pool.map(ask, self._parts))


class Peer:
    """What the other libraries have in common.

    Args:
        root: The folder that the store serves.
        folder: The library's own files, below it.
        records: Records of them.
        endpoint: Of the store.
        cache: The folder in which each run has a cache of its own.
        workers: Worker processes; 0: none.
    """

    def __init__(self, *, root: str, folder: str, records: int, endpoint: str, cache: str, workers: int) -> None:
        os.environ |= variables(endpoint)
        self._root, self._folder, self._records, self._workers = Path(root), folder, records, workers
        self._cache = cache
        self._loader: Any = None

    @property
    def url(self) -> str:
        """The URL of the library's files."""
        return f"s3://{BUCKET}/{self._folder}"

    def prepare(self) -> None:
        """Write the library's files, if they do not exist."""
        made = self._root / self._folder
        if not made.exists():
            temporary = made.with_name(f"{made.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            self.write(temporary, Source(made.parent, self._records))
            temporary.rename(made)

    def clear(self, number: int) -> None:
        """Forget all of an earlier run."""
        self._loader = None
        shutil.rmtree(self._cache, ignore_errors=True)
        self._cache = f"{self._cache.partition('#')[0]}#{number}"

    def epoch(self, number: int) -> int:
        """Load an epoch; the first one opens the data set."""
        del number
        if self._loader is None:
            self._loader = self.load(self._cache)
        images = sum(len(batch) for batch in self._loader)
        if images != self._records:
            raise ValueError(f"{images} records of {self._records}")
        return images

    def write(self, folder: Path, source: Source) -> None:
        """Write the library's files."""
        raise NotImplementedError

    def load(self, cache: str) -> Any:
        """Return an iterable of batches, each a list of records."""
        raise NotImplementedError


class Streaming(Peer):
    """MosaicML's StreamingDataset."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        import streaming

        self.version = f"mosaicml-streaming {streaming.__version__}"

    def write(self, folder: Path, source: Source) -> None:
        """Write shards."""
        import streaming

        columns = {"image": "bytes", "label": "int"}
        with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 26) as writer:
            for payload, label, _ in source.each():
                writer.write({"image": payload, "label": label})

    def load(self, cache: str) -> Any:
        """Stream them."""
        import streaming
        from streaming.base.util import clean_stale_shared_memory
        from torch.utils.data import DataLoader

        clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(remote=self.url, local=cache, shuffle=True, batch_size=BATCH)
        return DataLoader(dataset, BATCH, num_workers=self._workers, collate_fn=list)


class LitData(Peer):
    """LitData's StreamingDataset."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        import litdata
        from litdata.streaming import downloader

        # It does not ask for it, and takes no option that does: the store on loopback has no TLS.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"

        self.version = f"litdata {litdata.__version__}"

    def write(self, folder: Path, source: Source) -> None:
        """Write chunks, as `litdata.optimize` does in its processes."""
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder), chunk_bytes="64MB")
        for number, (payload, label, _) in enumerate(source.each()):
            writer[number] = {"image": payload, "label": label}
        writer.done()
        writer.merge(1)

    def load(self, cache: str) -> Any:
        """Stream them."""
        import litdata

        dataset = litdata.StreamingDataset(self.url, cache_dir=cache, shuffle=True, drop_last=False)
        return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=self._workers, collate_fn=list)


class Opener:
    """Opens a data set of very many shards, as one of the ranks of a node."""

    version = f"fastrecord {fr.__version__}"

    def __init__(
        self,
        *,
        url: str,
        endpoint: str,
        cache: str,
        fields: tuple[str, ...] = ("value",),
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        self._url, self._options, self._cache, self._fields = url, options(endpoint), cache, fields

    def open(self, number: int) -> int:
        """Open the data set."""
        return len(
            fr.FastRecordDataset(
                self._url, fields=self._fields, store=fr.Store(self._options, cache=f"{self._cache}/{number}")
            )
        )


def run(bench: Bench) -> None:
    """Measure epochs, caches and opening."""
    records, shard = (10_000, 256 << 20) if bench.full else (1_000, 16 << 20)
    root = bench.folder / f"interchange-{records}"
    write_shards(make_images(root, records).parent / "store", records, shard)
    caches = bench.folder / "caches"
    shutil.rmtree(caches, ignore_errors=True)
    with S3(bench.folder) as server:
        epochs(bench, server, root, records, caches)
        opening(bench, server, caches)
    shutil.rmtree(caches, ignore_errors=True)


def write_shards(folder: Path, records: int, shard: int) -> None:
    """Write the images to shards of so many bytes."""
    if folder.exists():
        return
    temporary = folder.with_name("store.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    each = shard // SIZE
    images = Source(folder.parent, records).each()
    for number in range(-(-records // each)):
        with fr.Writer(temporary / f"train-{number:05d}.frec", SCHEMA) as writer:
            for _, (payload, label, _) in zip(range(min(each, records - number * each)), images, strict=False):
                writer.append({"image": payload, "label": label})
    fr.files.write_manifest(temporary)
    temporary.rename(folder)


def epochs(bench: Bench, server: S3, root: Path, records: int, caches: Path) -> None:
    """Measure epochs with a cache for all, for a quarter, and on a slow network."""
    data = root / "store"
    url = f"s3://{BUCKET}/{data.relative_to(bench.folder)}"
    asked = bench.folder / "asked.json"
    total = sum(path.stat().st_size for path in data.glob("*.frec"))
    quarter = total // 4
    # The records of a window and of a step must fit into the cache at once.
    window = max(1, quarter // 3 // (4 << 20))
    ours: dict[str, Any] = {"data": url, "records": records, "endpoint": server.endpoint}
    alone = {"url": url, "endpoint": server.endpoint, "asked": str(asked)}
    contenders = [
        Contender(OURS, f"{HERE}Ours", {**ours, "cache": str(caches / "all")}),
        Contender(LOCAL, f"{HERE}Ours", {"data": str(data), "records": records}),
        Contender(ALONE, f"{HERE}Alone", alone),
        Contender(KEPT, f"{HERE}Alone", {**alone, "cache": str(caches / "alone")}),
    ]
    peers: list[str] = []
    for name, target in (("MosaicML Streaming", "Streaming"), ("LitData", "LitData")):
        for workers in (0, WORKERS) if bench.full else (WORKERS,):
            peers.append(f"{name}, {workers or 'no'} workers")
            settings = {
                "root": str(bench.folder),
                "folder": str((root / target.lower()).relative_to(bench.folder)),
                "records": records,
                "endpoint": server.endpoint,
                "cache": str(caches / f"{target}-{workers}"),
                "workers": workers,
            }
            contenders.append(Contender(peers[-1], f"{HERE}{target}", settings))
    with bench.contest(contenders) as contest:
        for name in peers:
            if name in contest.names:
                contest.call(name, "prepare")
        warm(data, *(root / name for name in ("streaming", "litdata")))
        contest.call(OURS, "clear", number=-1)
        server.take()
        contest.call(OURS, "epoch", number=-1)
        parts = [one for one in server.take() if one.name.endswith(".frec")]
        prefix = f"{data.relative_to(bench.folder)}/"
        asked.write_text(json.dumps([(one.name.removeprefix(prefix), one.start, one.length) for one in parts]))
        counts: dict[str, list[float]] = {}
        answers = contest.turns(
            {"epoch": counted(contest, server, counts)},
            rounds=bench.rounds,
            before=lambda name: clear(contest, name),
            only=[OURS, ALONE, KEPT, *peers],
        )["epoch"]
        case = f"the first epoch of {records:,} images of {SIZE // 1000} KB from the store"
        yardsticks: dict[str, dict[str, Any]] = {name: {"yardstick": True} for name in (ALONE, KEPT, LOCAL)}
        bench.rows(case, answers, contest, records=records, unit="images/s", of=yardsticks)
        for name in answers:  # fewer are not better: some bring whole shards
            bench.row(f"requests: {case}", name, "requests", counts[name][1:], yardstick=name != OURS)
        both = {name: found for name, found in again(bench, contest).items() if name in (OURS, LOCAL)}
        for name, found in both.items():
            rates = [records / answer.seconds for answer in found]
            settings = {"version": contest.versions[name], "records": records, **yardsticks.get(name, {})}
            bench.row("the second epoch, all in the cache", name, "images/s", rates, better="more", **settings)
    settings = {**ours, "cache": str(caches / "quarter"), "size": quarter, "window": window}
    with bench.contest([Contender(OURS, f"{HERE}Ours", settings)]) as contest:
        quarter_of(bench, contest, server, records, total)


def clear(contest: Contest, name: str) -> None:
    """Remove what a contender has kept, and write what the system still has to write."""
    if name in contest.names:
        contest.call(name, "clear", number=next(_NUMBERS))
    os.sync()


_NUMBERS: Any = iter(range(1 << 30))


def counted(contest: Contest, server: S3, counts: dict[str, list[float]]) -> Callable[[str, int], Answer | None]:
    """Return a call of an epoch that also counts its requests."""

    def call(name: str, number: int) -> Answer | None:
        server.take()
        answer = contest.call(name, "epoch", number=number)
        counts.setdefault(name, []).append(len(server.take()))
        return answer

    return call


def again(bench: Bench, contest: Contest) -> Mapping[str, list[Answer]]:
    """Measure epochs of data that are all here."""
    return contest.rounds("epoch", rounds=bench.rounds, arguments=lambda number: {"number": number}, only=[OURS, LOCAL])


def quarter_of(bench: Bench, contest: Contest, server: S3, records: int, total: int) -> None:
    """Measure a cache of a quarter of the data: bytes, then speed on a slow network."""
    case = f"a cache of 25 % of the data, shuffled by blocks, {EPOCHS} epochs"
    clear(contest, OURS)
    plan = contest.call(OURS, "planned")
    clear(contest, OURS)
    server.take()
    asked: list[list[Asked]] = []
    for number in range(EPOCHS):
        if contest.call(OURS, "epoch", number=number) is None:
            break
        asked.append(server.take())
    if plan is None or len(asked) < EPOCHS:
        for name, why in contest.missing.items():
            bench.not_measured(f"bytes: {case}", name, why, unit="bytes")
        return
    each = [sum(one.length for one in epoch if one.name.endswith(".frec")) for epoch in asked]
    about: dict[str, Any] = {"data_bytes": total, "version": contest.versions[OURS]}
    bench.row(f"bytes: {case}", OURS, "bytes", [sum(each)], epochs=each, **about)
    bench.row(f"bytes: {case}", "as planned", "bytes", [sum(plan.value["bytes"])], yardstick=True)
    bench.row(f"bytes: {case}", "the least possible", "bytes", [sum(plan.value["best"])], yardstick=True)
    again = [sent_again(epoch, ".frec") for epoch in asked]
    bench.row(f"bytes that came more than once in an epoch: {case}", OURS, "bytes", again, **about)
    slow = f"{1000 * LATENCY:.0f} ms and {BANDWIDTH / 1e6:.0f} MB/s"
    server.slow(LATENCY, BANDWIDTH)
    rates: dict[int, list[float]] = {}
    for _ in range(2 if bench.full else 1):
        clear(contest, OURS)
        for number in range(EPOCHS):
            answer = contest.call(OURS, "epoch", number=number)
            if answer is not None:
                rates.setdefault(min(number, 1), []).append(records / answer.seconds)
    server.slow(0, 0)
    bound = BANDWIDTH * records / total
    for later, found in rates.items():
        name = f"{'later epochs' if later else 'the first epoch'} with {slow}, {case}"
        bench.row(name, OURS, "images/s", found, better="more", records=records, **about)
        bench.row(name, "the bandwidth", "images/s", [bound], better="more", yardstick=True)


def opening(bench: Bench, server: S3, caches: Path) -> None:
    """Measure how a data set of very many shards opens, by one process and by the ranks of a node."""
    shards, several = SHARDS[bench.full], 8 if bench.full else 4
    folder = make(bench.folder / f"shards-{shards}", shards)
    settings = {"url": f"s3://{BUCKET}/{folder.name}", "endpoint": server.endpoint}
    for processes in (1, several):
        at_once = "" if processes == 1 else f", {processes} processes at once"
        case = f"opening a data set of {shards:,} shards{at_once}"
        cache = str(caches / f"open-{processes}")
        asked: list[int] = []
        with bench.contest(
            [Contender(OURS, f"{HERE}Opener", {**settings, "cache": cache}, copies=processes)]
        ) as contest:

            def call(name: str, number: int, contest: Contest = contest, asked: list[int] = asked) -> Answer | None:
                server.take()
                answer = contest.call(name, "open", number=number)
                asked.append(len(server.take()))
                return answer

            answers = contest.turns({"open": call}, rounds=bench.rounds)["open"]
            about: dict[str, Any] = {"shards": shards, "processes": processes}
            bench.rows(case, answers, contest, **about)
            if answers:
                bench.row(f"requests: {case}", OURS, "requests", asked[1:], **about)


def warm(*folders: Path) -> None:
    """Read all files of some folders."""
    for path in files(folders):
        path.read_bytes()


def files(folders: Iterable[Path]) -> Iterable[Path]:
    """Yield the files of some folders."""
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())
