"""Data sets of a manifest: shards are opened when they are read, few at a time, and as they are named."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord.dataset.manifest import Manifest
from fastrecord.dataset.shards import Shards
from tests.support.child import run_child
from tests.support.commands import failed, good, run

PER_SHARD = 4
SCHEMA = fr.Schema({"text": fr.string("zstd"), "value": "int64", "label": "int64"})


def shard(path: Path, first: int, count: int = PER_SHARD, *, mode: str = "w", classes: list[str] | None = None) -> None:
    with fr.Writer(path, SCHEMA if mode == "w" else None, mode=mode) as writer:
        for value in range(first, first + count):
            writer.append({"text": f"text {value}", "value": value, "label": value % 2})
        if mode == "w":
            writer.metadata = {"classes": classes or ["cat", "dog"]}


def make(folder: Path, shards: int) -> Path:
    folder.mkdir()
    for number in range(shards):
        shard(folder / f"s{number:03d}.frec", PER_SHARD * number)
    fr.files.write_manifest(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "set", 5)


def values(dataset: fr.FastRecordDataset) -> list[int]:
    return [int(sample["value"]) for sample in dataset.__getitems__(range(len(dataset)))]


def test_opening_opens_no_shard_and_reading_opens_the_ones_it_needs(folder: Path) -> None:
    for name in os.listdir(folder):
        if name.endswith(".frec") and name != "s003.frec" and name != "s000.frec":
            (folder / name).unlink()
    dataset = fr.FastRecordDataset(folder, fields=("value", "label"))
    assert (len(dataset), dataset.classes, len(dataset.paths)) == (20, ["cat", "dog"], 5)
    assert dataset[13] == {"value": 13, "label": 1}
    assert [one["records"] for one in dataset.snapshots] == [PER_SHARD] * 5


def test_the_first_shard_alone_is_opened(folder: Path) -> None:
    """The schema of one open file is what the others must have."""
    opened = run_child(
        f"""
        def files():
            return sorted(os.readlink(f"/proc/self/fd/{{fd}}").split("/")[-1] for fd in os.listdir("/proc/self/fd")
                          if os.path.exists(f"/proc/self/fd/{{fd}}"))
        dataset = fr.FastRecordDataset({str(folder)!r}, fields=("value",))
        print([name for name in files() if name.endswith(".frec")])
        sampler = fr.FastRecordBatchSampler(dataset, 4, shuffle=True)
        state = sampler.state_dict()
        loader = fr.FastRecordLoader(dataset, batch_sampler=sampler)
        dataset[9]
        print([name for name in files() if name.endswith(".frec")])
        """,
        folder,
    ).splitlines()
    assert opened == ["['s000.frec']", "['s000.frec', 's002.frec']"]


def test_the_order_is_the_manifests_and_other_files_do_not_belong(folder: Path) -> None:
    shard(folder / "a-later.frec", 100)
    assert values(fr.FastRecordDataset(folder)) == list(range(20))
    assert values(fr.FastRecordDataset(folder / "dataset.json")) == list(range(20))
    fr.files.write_manifest(folder)
    assert values(fr.FastRecordDataset(folder)) == [*range(20), *range(100, 104)]


def test_a_shard_that_has_grown_is_read_at_the_manifests_commit(folder: Path) -> None:
    shard(folder / "s001.frec", 500, 3, mode="a")
    dataset = fr.FastRecordDataset(folder)
    assert values(dataset) == list(range(20))
    assert values(pickle.loads(pickle.dumps(dataset))) == list(range(20))
    assert dataset.column("value").tolist() == list(range(20))
    fr.files.write_manifest(folder)
    assert values(dataset) == list(range(20))
    assert values(fr.FastRecordDataset(folder)) == [*range(8), 500, 501, 502, *range(8, 20)]


def test_classes_are_matched_without_opening_shards(tmp_path: Path) -> None:
    for name, first, classes in (("a", 0, ["cat", "dog"]), ("b", 4, ["dog", "emu"]), ("c", 8, ["cat", "dog"])):
        shard(tmp_path / f"{name}.frec", first, classes=classes)
    fr.files.write_manifest(tmp_path)
    dataset = fr.FastRecordDataset(tmp_path)
    assert dataset.classes == ["cat", "dog", "emu"]
    assert dataset.targets.tolist() == [0, 1, 0, 1, 1, 2, 1, 2, 0, 1, 0, 1]
    labels = [label for batch in fr.FastRecordLoader(dataset, 5, shuffle=False) for label in batch["label"].tolist()]
    assert labels == dataset.targets.tolist()


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5000)


def replace(path: Path) -> None:
    shard(path, 8)


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4000, os.SEEK_END)
        file.write(b"\xff" * 8)


def rewrite(path: Path) -> None:
    """Make another commit of the same number in the same file."""
    manifest = path.parent / "dataset.json"
    known = json.loads(manifest.read_bytes())
    known["shards"]["footer_crc"][2] ^= 1
    manifest.write_text(json.dumps(known))


WAYS: list[tuple[Callable[[Path], None], type[Exception], str]] = [
    (
        Path.unlink,
        FileNotFoundError,
        r"dataset\.json names this shard: put it back, or leave it out by `fastrecord manifest",
    ),
    (replace, fr.FastRecordError, r"was replaced: .* name this one by `fastrecord manifest .*FR205"),
    (rewrite, fr.FastRecordError, r"was replaced: .* name this one by `fastrecord manifest .*FR205"),
    (cut, fr.FastRecordError, r"FR20|FR30"),
    (damage, fr.FastRecordError, r"FR20|FR30"),
]


@pytest.mark.parametrize(("change", "error", "message"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_shard_that_is_not_as_named_is_an_error_that_names_it(
    folder: Path, change: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    change(folder / "s002.frec")
    dataset = fr.FastRecordDataset(folder, fields=("value",))
    assert dataset[5] == {"value": 5}
    for read in (lambda: dataset[9], lambda: pickle.loads(pickle.dumps(dataset))[9], lambda: dataset.column("value")):
        with pytest.raises(error, match=message) as caught:
            read()
        assert "s002.frec" in str(caught.value)
    loader = fr.FastRecordLoader(dataset, 4, shuffle=False)
    batches = iter(loader)
    assert next(batches)["value"].tolist() == [0, 1, 2, 3]
    with pytest.raises(error, match=message) as caught:
        list(batches)
    assert "s002.frec" in str(caught.value)
    if error is FileNotFoundError:
        return  # what the system reports is never skipped
    skipping = fr.FastRecordLoader(dataset, 4, shuffle=False, on_error=fr.Skip(limit=None, handler=lambda *_: None))
    found = [value for batch in skipping for value in batch["value"].tolist()]
    assert found == [*range(8), *range(12, 20)]


def test_a_shard_that_comes_back_is_read(folder: Path, tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(folder, fields=("value",))
    os.rename(folder / "s002.frec", tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        dataset[9]
    os.rename(tmp_path / "away", folder / "s002.frec")
    assert dataset[9] == {"value": 9}


def test_a_damaged_manifest_names_the_way_out(folder: Path) -> None:
    (folder / "dataset.json").write_text('{"format": "fastrecord-dataset"}')
    with pytest.raises(
        fr.errors.CorruptFileError, match=r"dataset\.json: .*`fastrecord manifest` makes another .*FR210"
    ):
        fr.FastRecordDataset(folder)
    known = json.loads(make(folder.parent / "empty", 1).joinpath("dataset.json").read_bytes())
    known["shards"] = {name: [] for name in known["shards"]}
    (folder / "dataset.json").write_text(json.dumps(known))
    with pytest.raises(FileNotFoundError, match=r"dataset\.json: it names no shard"):
        fr.FastRecordDataset(folder)


def test_a_flipped_bit_in_a_manifest_changes_no_data_set(folder: Path) -> None:
    data = (folder / "dataset.json").read_bytes()
    known = Manifest.parse(data, "here")
    refused = 0
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = Manifest.parse(bytes(flipped), "here")
        except fr.FastRecordError:
            refused += 1
        else:  # a bit of the checksum's own line
            assert dataclasses.replace(found, extra={}) == known
    assert refused > 2.5 * len(data)


def test_readers_are_made_when_they_are_used(folder: Path) -> None:
    shard(folder / "s005.frec", 0, 0)
    fr.files.write_manifest(folder)
    readers = fr.FastRecordDataset(folder, fields=("value",)).readers
    assert len(readers) == 6
    for at in (3, -1):  # the last one has no record
        assert readers[at] is readers[at]
    assert [str(reader.path) for reader in readers[1:3]] == [str(folder / "s001.frec"), str(folder / "s002.frec")]
    with pytest.raises(IndexError):
        readers[6]


def test_a_closed_data_set_reads_nothing(folder: Path) -> None:
    dataset = fr.FastRecordDataset(folder, fields=("value",))
    text = fr.FastRecordDataset(folder, fields=("text",))[7]["text"]
    dataset[1]
    dataset.close()
    for row in (1, 9):
        with pytest.raises(ValueError, match="the reader is closed"):
            dataset[row]
    assert text == "text 7"


def test_manifests_files_and_views_join(folder: Path, tmp_path: Path) -> None:
    shard(tmp_path / "more.frec", 100)
    other = make(tmp_path / "other", 2)
    joined = fr.FastRecordDataset([folder, tmp_path / "more.frec", other])
    expected = [*range(20), *range(100, 104), *range(8)]
    assert values(joined) == expected
    assert values(pickle.loads(pickle.dumps(joined))) == expected
    assert len(joined.snapshots) == 8
    data = fr.FastRecordDataset(folder)
    both = data.filter("value", "<", 3) + data.subset([19, 0])
    assert values(both) == [0, 1, 2, 19, 0]
    assert len(both.readers) == 5
    assert values(pickle.loads(pickle.dumps(both))) == [0, 1, 2, 19, 0]
    assert values(fr.FastRecordDataset(data.snapshots)) == list(range(20))
    joined.close()
    with pytest.raises(ValueError, match="closed"):
        joined[0]


@given(rows=st.lists(st.integers(-20, 19), max_size=40))
@settings(max_examples=30)
def test_any_rows_are_what_the_files_hold(tmp_path_factory: pytest.TempPathFactory, rows: list[int]) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    if not folder.exists():
        make(folder, 5)
    dataset = fr.FastRecordDataset(folder)
    expected = [row % 20 for row in rows]
    assert [int(sample["value"]) for sample in dataset.__getitems__(rows)] == expected
    assert [sample["text"] for sample in dataset.__getitems__(rows)] == [f"text {row}" for row in expected]
    shards = Shards.open(folder)
    assert [shards.locate(row) for row in expected] == [divmod(row, PER_SHARD) for row in expected]
    assert np.array_equal(dataset.rows(rows), np.array(expected, np.int64))


LIMITED = """
import pickle, torch
from torch.utils.data import DataLoader
path, shards = {path!r}, {shards}
total = {per_shard} * shards
everything = sorted(range(total))
access = {access!r}
with_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
torch.zeros(1).numpy()
dataset = fr.FastRecordDataset(path, fields=("text", "value", "label"), access=access)
few = fr.FastRecordDataset(path, fields=("value", "label"), access=access)
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, with_limit[1]))

def check(found):
    assert sorted(found) == everything, len(found)

check(int(sample["value"]) for sample in dataset.__getitems__(list(range(total))))
order = np.random.default_rng(0).permutation(total).tolist()
check(dataset[row]["value"] for row in order)
assert dataset.column("value").tolist() == everything
for data in (few, dataset, few.filter("label", "==", 0) + few.filter("label", "==", 1)):
    for batch_size in (7, 150):
        check(value for batch in fr.FastRecordLoader(data, batch_size) for value in batch["value"].tolist())
check(pickle.loads(pickle.dumps(dataset))[row]["value"] for row in order)
pid = os.fork()
if pid == 0:
    try:
        check(dataset[row]["value"] for row in order)
        loader = fr.FastRecordLoader(few, 32)
        check(value for batch in loader for value in batch["value"].tolist())
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
loader = DataLoader(dataset, batch_size=50, shuffle=True, num_workers=2, collate_fn=fr.collate)
torch.multiprocessing.set_sharing_strategy("file_system")
check(value for batch in loader for value in batch["value"].tolist())
print("good")
"""


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_many_shards_are_read_with_few_open_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, access: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "many shards"
    if not folder.exists():
        make(folder, 70)
    script = LIMITED.format(path=str(folder), shards=70, per_shard=PER_SHARD, access=access, limit=64)
    assert run_child(script, tmp_path) == "good\n"


def test_changes_of_a_manifest_do_not_reach_open_data_sets(folder: Path) -> None:
    dataset: Any = fr.FastRecordDataset(folder)
    (folder / "dataset.json").unlink()
    assert values(dataset) == list(range(20))
    assert values(pickle.loads(pickle.dumps(dataset))) == list(range(20))


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a manifest that is well-formed and wrong."""
    known = json.loads((folder / "dataset.json").read_bytes())
    change(known)
    (folder / "dataset.json").write_text(json.dumps(known))


def other_classes(known: dict[str, Any]) -> None:
    known["classes"].append(["dog", "cat"])
    known["shards"]["classes"][2] = 1


def other_type(known: dict[str, Any]) -> None:
    known["schema"][1]["type"] = "float64"


def field_left_out(known: dict[str, Any]) -> None:
    del known["schema"][0]


def field_made_up(known: dict[str, Any]) -> None:
    known["schema"].append({"name": "mask", "type": "image"})


def no_classes(known: dict[str, Any]) -> None:
    known["classes"], known["shards"]["classes"] = [], [None] * 5


LIES: list[tuple[Callable[[dict[str, Any]], None], int, str]] = [
    (other_classes, 2, "its classes are not those that dataset.json names"),
    (no_classes, 0, "its classes are not those that dataset.json names"),
    (other_type, 0, "its fields are not those that dataset.json names: .*'?value'?.*float64"),
    (field_left_out, 0, "its fields are not those that dataset.json names"),
    (field_made_up, 0, "its fields are not those that dataset.json names: .*mask"),
]


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize(("change", "number", "message"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_manifest_that_lies_about_a_shard_is_refused_when_it_is_opened(
    folder: Path, change: Callable[[dict[str, Any]], None], number: int, message: str, prefix: str
) -> None:
    rewritten(folder, change)
    name = f"s{number:03d}"
    match = rf"{name}\.frec: (record \d+: )?{message}.*`fastrecord manifest .*set` names it as it is.*FR41"

    def opened() -> fr.FastRecordDataset:
        return pickle.loads(pickle.dumps(fr.FastRecordDataset(f"{prefix}{folder}", fields=("value", "label"))))  # type: ignore[no-any-return]

    for read in (values, lambda data: list(fr.FastRecordLoader(data, 4))) * 2:
        with pytest.raises(fr.errors.SchemaError, match=match):
            read(opened())
    told = failed("verify", f"{prefix}{folder}")
    assert name in told
    assert name in run("manifest", f"{prefix}{folder}", "--check").output
    good("manifest", f"{prefix}{folder}")
    assert values(fr.FastRecordDataset(f"{prefix}{folder}")) == list(range(20))
    good("verify", f"{prefix}{folder}")


def test_one_shard_under_two_names_is_refused(folder: Path) -> None:
    shutil.copy(folder / "s001.frec", folder / "s007.frec")

    def twice(known: dict[str, Any]) -> None:
        for values in known["shards"].values():
            values.append(values[1])
        known["shards"]["name"][-1] = "s007.frec"

    rewritten(folder, twice)
    for where in (folder, f"file://{folder}"):
        with pytest.raises(
            fr.errors.CorruptFileError, match=r"names one shard twice, as 's001\.frec' and as 's007\.frec'"
        ):
            fr.FastRecordDataset(where)
        for command in (["verify", where], ["manifest", where, "--check"], ["info", where]):
            assert "'s007.frec'" in failed(*command)


@pytest.mark.parametrize("lost", ["s000", "s003"])
def test_verify_says_what_opening_says_of_files_without_a_manifest(tmp_path: Path, lost: str) -> None:
    shard(tmp_path / "all.frec", 0, 16)
    (tmp_path / "set").mkdir()
    parts = [tmp_path / "set" / f"s{number:03d}.frec" for number in range(4)]
    fr.files.split(tmp_path / "all.frec", parts, shards=4)
    (tmp_path / "set" / "dataset.json").unlink()
    good("verify", tmp_path / "set")
    (tmp_path / "set" / f"{lost}.frec").rename(tmp_path / "lost.frec")
    with pytest.raises(fr.FastRecordError, match="FR208") as refused:
        fr.FastRecordDataset(tmp_path / "set")
    assert str(refused.value).split(":")[0] in failed("verify", tmp_path / "set")
    report = json.loads(run("verify", tmp_path / "set", "--json").stdout.splitlines()[-1])
    assert (report["ok"], report["codes"]) == (False, ["FR208"])
    (tmp_path / "lost.frec").rename(tmp_path / "set" / f"{lost}.frec")
    shutil.copy(tmp_path / "all.frec", tmp_path / "set")
    assert "hold records twice" in failed("verify", tmp_path / "set")


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_missing_shards_are_left_out_with_a_warning_if_that_is_allowed(folder: Path, prefix: str) -> None:
    (folder / "s003.frec").unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"s003\.frec"):
            values(fr.FastRecordDataset(f"{prefix}{folder}"))
        with pytest.warns(UserWarning, match=r"set: left out 4 records of 1 of 5 shards .* missing: 's003\.frec'"):
            dataset = fr.FastRecordDataset(f"{prefix}{folder}", allow_incomplete=True)
        assert values(pickle.loads(pickle.dumps(dataset))) == [*range(12), *range(16, 20)]
        batches = fr.FastRecordLoader(dataset, 4, shuffle=False)
        assert [int(value) for batch in batches for value in batch["value"]] == [*range(12), *range(16, 20)]
    make(folder.parent / "whole", 2)
    assert len(fr.FastRecordDataset(f"{prefix}{folder.parent}/whole", allow_incomplete=True)) == 8
    for left in folder.glob("*.frec"):
        left.unlink()
    with pytest.raises(FileNotFoundError, match=r"s000\.frec"):
        fr.FastRecordDataset(folder, allow_incomplete=True)
