"""Packs into odd keys of a bucket, reads and copies them; another client lists what is there.

Each key gets a data set, which is read, copied here and sent to a sibling; every third one is
packed over. After each step, boto3 lists the bucket: what was there has its ETag still, and what is
new lies below the key, character by character.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fastrecord as fr
from fastrecord.store.verification import open_url, verify
from tests.support.machines.stores import Server, started
from tests.support.packing import pack_with
from tests.torture.experiment import Experiment, Outcome, Rounds

# Each differs from others only in what some layer may cut, decode, fold or trim.
_KNOWN = (
    *("exp#1", "exp#2", "a%20b", "a b", "a%2Fb", "a/b", "%2e%2e", "exp?1", "exp?x=1&y=2", "exp", "exp#", "exp?", "?"),
    *("#", "a+b", "..a", "a..", "...", "%2e", "%", "%%", "%zz", "a%", "%25", "%2525", "~", "a~b", "\u00e9", "e\u0301"),
    *("A", "a", "*", "a*b", "[a]", "{a}", "a|b", "a^b", "a`b", 'a"b', "a'b", "a<b>", "a&amp;b", "a;b", "a@b", "a:b"),
    *("$a", "a!", "(a)", "a=b", " a", "a ", "\u00a0a", "\u3000", "\u200b", "\ufeffa", "\u2028a", "\u202ea"),
    *(
        "\U0001f600",
        "a\\b",
        "s3:",
        "C:",
        "-a",
        "dataset.json#",
        "a.frec#1",
        "x" * 100,
        "\u00fc" * 40,
        "a\u0085b",
        "\ufffd",
    ),
)
_LETTERS = "ab#?%&+=~*:;@$!,'\"()[]{}<>|^`\\. _-\u00fc\u0301\u4e2d\U0001f600" + "%2F%2e%00#?"


def odd_keys(count: int, seed: int) -> list[str]:
    """Return so many different keys that are good ones: the known ones, then random ones."""
    draw, keys = random.Random(seed), dict.fromkeys(_KNOWN)
    while len(keys) < count:
        parts = ["".join(draw.choices(_LETTERS, k=draw.randrange(1, 12))) for _ in range(draw.randrange(1, 4))]
        # A .frec file would be no folder.
        if not {*parts} & {".", ".."} and not parts[-1].endswith(".frec"):
            keys["/".join(parts)] = None
    return list(keys)[:count]


class _Key:
    """A key, and what was seen in the bucket."""

    def __init__(self, key: str, number: int, server: Server, folder: Path) -> None:
        self._url, self._number, self._server, self._folder = f"s3://bucket/keys/{key}/", number, server, folder
        self._options, self._seen = server.options, server.keys()

    def use(self) -> None:
        """Pack into it, read and copy the data set, and pack over some."""
        self._pack(2)
        names = self._only_below(self._url)
        assert len(names) == 3, names
        self._read(self._url)
        here = self._folder / "copy"
        fr.files.copy(self._url, here, store=fr.Store(self._options))
        sibling = f"{self._url[:-1]}#copy?%23"
        fr.files.copy(here, sibling, store=fr.Store(self._options))
        assert self._only_below(sibling) == names
        self._read(sibling)
        shutil.rmtree(here)
        assert fr.files.check_manifest(sibling, store=fr.Store(self._options)) == []
        if self._number % 3 == 0:
            mine = {f"{self._key(self._url)}{name}" for name in names}
            self._seen = {key: tag for key, tag in self._seen.items() if key not in mine}
            self._pack(1, mode="overwrite")
            assert len(self._only_below(self._url)) == 2
            self._read(self._url)

    def _pack(self, shards: int, **options: Any) -> None:
        # Larger than what is asked for of a file's end: s3s-fs refuses more than there is.
        items = [{"value": self._number, "at": at, "data": bytes(40_000)} for at in range(4)]
        staging = self._folder / "staging"
        pack_with(
            items, self._url, format="dataset", shards=shards, staging=staging, store=fr.Store(self._options), **options
        )

    def _read(self, url: str) -> None:
        dataset = fr.FastRecordDataset(url, fields=("value", "at"), store=fr.Store(self._options))
        assert [dataset[at] for at in range(len(dataset))] == [{"value": self._number, "at": at} for at in range(4)]
        shard = dataset.readers[0].path
        file = open_url(shard, fr.Store(self._options))  # one file: `info`, `verify`
        assert file.reader.path == shard
        assert verify(file)["ok"]

    def _only_below(self, url: str) -> set[str]:
        """Check that what is new lies below a URL, and what was there still does; return the new names."""
        before, self._seen = self._seen, self._server.keys()
        assert before.items() <= self._seen.items(), "another object was touched"
        below = self._key(url)
        new = self._seen.keys() - before.keys()
        assert all(key.startswith(below) for key in new), new
        return {key.removeprefix(below) for key in new}

    def _key(self, url: str) -> str:
        return url.removeprefix("s3://bucket/").removesuffix("/") + "/"


def run(count: int) -> Outcome:
    """See the module docstring."""
    rounds = Rounds()
    keys = odd_keys(count, rounds.seed)
    with started() as server, tempfile.TemporaryDirectory() as name:
        for number in rounds.until(len(keys), "keys"):
            with rounds.trial(repr(keys[number])):
                _Key(keys[number], number, server, Path(name)).use()
    return rounds.outcome()


EXPERIMENT = Experiment("keys", 1, "odd keys of objects", 8, 200, run)
