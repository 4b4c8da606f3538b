"""`LoaderStats`: what a loader has done, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Sums since a loader was made; subtract two to get the sums of an interval.

    Attributes:
        records: Records loaded.
        images: Records whose images were made: all of them, or none for batches of arrays.
        skipped: Records left out of the batches handed out.
        by_pillow: Records with an image that the core does not support, decoded by Pillow in the
            consumer's thread.
        batches: Batches handed to the consumer.
        reads: Payloads read.
        bytes_read: Bytes of these payloads, and of values in columns, such as labels.
        seconds: Wall time of the iterations, starting when their first batch is requested.
        threads: Threads that work in an iteration.
        read_seconds: Reading and checking payloads, and stacking arrays, summed over the threads.
        decode_seconds: Decoding, likewise.
        resize_seconds: Cropping, resizing and mirroring, likewise.
        wait_seconds: Time that the consumer waited for batches.
        bytes_downloaded: Bytes that this process has brought from object stores, of the loader's files.
        bytes_from_cache: Bytes of payloads that were in the cache when a batch needed them.
        network_seconds: Time that the consumer waited for bytes from object stores.
    """

    records: int = 0
    images: int = 0
    skipped: int = 0
    by_pillow: int = 0
    batches: int = 0
    reads: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    threads: int = 0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_downloaded: int = 0
    bytes_from_cache: int = 0
    network_seconds: float = 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return the sums since `earlier`."""
        values = {field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        return LoaderStats(**{**values, "threads": self.threads})

    @property
    def records_per_second(self) -> float:
        """Records loaded per second of wall time."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def images_per_second(self) -> float:
        """Images made per second of wall time."""
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """Millions of bytes read per second of wall time."""
        return self.bytes_read / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def reads_per_second(self) -> float:
        """Payloads read per second of wall time."""
        return self.reads / self.seconds if self.seconds else 0.0

    @property
    def _busy_seconds(self) -> float:
        return self.read_seconds + self.decode_seconds + self.resize_seconds

    def _share(self, seconds: float) -> float:
        # Work that began before an interval, or runs in several iterations at once, may exceed the
        # threads' time.
        available = max(self.threads * self.seconds, self._busy_seconds)
        return seconds / available if available else 0.0

    @property
    def read_share(self) -> float:
        """Share of the threads' time spent reading, in [0, 1]."""
        return self._share(self.read_seconds)

    @property
    def decode_share(self) -> float:
        """Share of the threads' time spent decoding, in [0, 1]."""
        return self._share(self.decode_seconds)

    @property
    def resize_share(self) -> float:
        """Share of the threads' time spent resizing, in [0, 1]."""
        return self._share(self.resize_seconds)

    @property
    def idle_share(self) -> float:
        """Share of the threads' time spent waiting for the consumer or for a CPU, in [0, 1]."""
        return 1.0 - self._share(self._busy_seconds) if self.seconds and self.threads else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the wall time that the consumer waited for batches, in [0, 1]."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0

    def __str__(self) -> str:
        """Return the statistics in one line."""
        shares = {"read": self.read_share, "decode": self.decode_share, "resize": self.resize_share}
        told = ", ".join(f"{name} {100 * share:.0f} %" for name, share in {**shares, "idle": self.idle_share}.items())
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        by_pillow = f", {self.by_pillow} by Pillow" if self.by_pillow else ""
        arrays = self.records > self.images
        made = f"{self.records_per_second:.0f} records/s" if arrays else f"{self.images_per_second:.0f} images/s"
        moved = self.bytes_downloaded + self.bytes_from_cache
        network = f", {self.bytes_downloaded / 1e6:.0f} MB of {moved / 1e6:.0f} MB downloaded" if moved else ""
        return (
            f"{made}, {self.megabytes_per_second:.0f} MB/s, "
            f"{self.reads_per_second:.0f} reads/s on {self.threads} threads ({told}); "
            f"consumer waited {100 * self.wait_share:.0f} %{by_pillow}{skipped}{network}"
        )


class Clock:
    """The consumer's time: total time of iterations, and time spent waiting for batches."""

    def __init__(self) -> None:
        self.batches = 0
        self.by_pillow = 0
        self.waited = self.network = 0.0
        self._running = 0
        self._since = 0.0
        self._before = 0.0

    def start(self) -> None:
        """Start the clock for an iteration."""
        if not self._running:
            self._since = time.perf_counter()
        self._running += 1

    def stop(self) -> None:
        """Stop the clock for an iteration."""
        self._running -= 1
        if not self._running:
            self._before += time.perf_counter() - self._since

    def seconds(self) -> float:
        """Return the time during which an iteration was running."""
        return self._before + (time.perf_counter() - self._since if self._running else 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    @contextmanager
    def waiting_for_network(self) -> Iterator[None]:
        """Count the time of the block as waiting, for the network."""
        before = self.waited
        with self.waiting():
            yield
        self.network += self.waited - before
