"""The experiment with readers beside a writer detects each planted failure."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

import fastrecord as fr
from tests.torture import known
from tests.torture.known import WrongDataError
from tests.torture.readers.readers import Run
from tests.torture.readers.reading import Snapshot


def write(path: Path, count: int, *, of: int | None = None) -> fr.Reader:
    """Write some records of generation 1; the last one gets the values of record `of`."""
    with fr.Writer(path, known.SCHEMA, "w", metadata={"generation": 1}) as writer:
        for number in range(count):
            writer.append(known.record(1, of if of is not None and number == count - 1 else number, known.SCHEMA))
    return fr.Reader(path)


def look_often(snapshot: Snapshot) -> None:
    draw = Random(1)
    for _ in range(100):
        snapshot.look(draw)


def test_any_record_in_the_place_of_another_is_seen_in_every_field(tmp_path: Path) -> None:
    end = known.Commits(1).next_end(50)
    look_often(Snapshot(write(tmp_path / "good.frec", end), (1, end)))
    reader = write(tmp_path / "bad.frec", end, of=end + 1)
    with pytest.raises(WrongDataError, match=f"generation 1, record {end - 1}"):
        look_often(Snapshot(reader, (1, end)))
    for name in known.FIELDS:
        # Three numbers may share booleans and empty values.
        if name not in ("flag", "data", "packed", "tags", "counts", "grid", "wave"):
            assert not known.same(known.value(1, end - 1, name), known.value(1, end + 1, name)), name


def test_a_part_of_a_commit_and_a_lost_one_are_seen(tmp_path: Path) -> None:
    commits = known.Commits(1)
    count = next(number for number in range(1, 1000) if not commits.is_end(number))
    with pytest.raises(WrongDataError, match=f"{count} records are a part of a commit"):
        Snapshot(write(tmp_path / "part.frec", count), (0, 0))
    end = commits.next_end(count)
    reader = write(tmp_path / "less.frec", end)
    with pytest.raises(WrongDataError, match="were committed"):
        Snapshot(reader, (1, end + 1))
    with pytest.raises(WrongDataError, match="were committed"):
        Snapshot(reader, (2, 1))


def test_a_reader_that_grows_is_reported(tmp_path: Path) -> None:
    held = {"memory": 100 << 20, "descriptors": 20, "threads": 4, "mappings": 0}
    for name, last in (("flat", held), ("grown", held | {"memory": 200 << 20}), ("mapped", held | {"mappings": 1})):
        (tmp_path / "use-1").write_text(json.dumps([held] * 5 + [last]))
        run = Run(tmp_path, long=False)
        run.growth()
        assert len(run.failures) == (name != "flat")
