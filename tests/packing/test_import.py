"""Imports: fields, labels, shards, bad records, and what stays after an end before the last record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.paths import expand
from fastrecord.packing.keys import SeenKeys
from fastrecord.packing.pack import preview as show
from tests.support.commands import failed, good
from tests.support.formats.sources import made, value, write_source  # noqa: F401 - `made` is a fixture
from tests.support.packing import pack_with

pytestmark = pytest.mark.usefixtures("made")
N = 5000  # two runs of the source


def rows(*paths: Path) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        with fr.Reader(path) as reader:
            for record in (reader[i] for i in range(len(reader))):
                record["image"] = bytes(record["image"])
                record["x"] = record["x"].tolist()
                found.append(record)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", N)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.frec"


# What is stored


def test_every_record_arrives_in_order_with_its_classes(source: Path, out: Path) -> None:
    summary = pack_with(source, out)
    assert (summary.records, summary.packed, summary.classes) == (N, N, ["ant", "bee", "cat"])
    assert (summary.format, summary.recognised) == ("made", 'it begins with {"records"')
    assert pack_with(source, out, format="made", mode="overwrite").recognised is None
    assert rows(out) == [value(i) for i in range(N)]
    with fr.Reader(out) as reader:
        assert reader.complete
        assert reader.metadata["note"] == "from the source"
        assert list(reader.schema) == ["image", "x", "label", "count", "key"]


def test_fields_can_be_chosen_renamed_and_converted(source: Path, out: Path) -> None:
    mapping = {"name": "cls", "n": "count", "text": "count", "x": "x"}
    types = {"n": "int16", "text": "string", "x": "array(float64, (None,))"}
    pack_with(source, out, mapping=mapping, types=types)
    with fr.Reader(out) as reader:
        kinds = {name: str(kind) for name, kind in reader.schema.items()}
        assert kinds == {"name": "string", "n": "int16", "text": "string", "x": "array(float64, (None,))"}
        record = reader[4000]
        assert (record["name"], record["n"], record["text"]) == ("ant", 4000, "4000")
        assert record["x"].tolist() == [4000.0] * 3


def test_labels_stay_names_on_request(source: Path, out: Path) -> None:
    assert pack_with(source, out, types={"label": "string"}).classes is None
    with fr.Reader(out) as reader:
        assert reader[1]["label"] == "ant"


def test_images_are_changed_as_by_pack(source: Path, out: Path) -> None:
    summary = pack_with(source, out, raw=True)
    assert summary.recoded is not None
    assert summary.recoded["raw"] == N
    with fr.Reader(out) as reader:
        assert bytes(reader[0]["image"]).startswith(b"P6")


def test_names_alone_keep_these_fields(source: Path, out: Path) -> None:
    for more in (["image,label"], ["image", "--map", "label"]):
        good("import", source, out, "--overwrite", "--map", *more)
        with fr.Reader(out) as reader:
            assert list(reader.schema) == ["image", "label"]


def test_a_preview_shows_fields_and_records_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    preview = show(source)
    assert (preview.format, preview.records, len(preview.first)) == ("made", N, 3)
    assert [name for name, *_ in preview.fields] == ["image", "x", "label", "count", "key"]
    text = good(
        "import",
        source,
        tmp_path / "no.frec",
        "--dry-run",
        "--map",
        "a=x,k=__key__",
        "--type",
        "a=array(float64, (3,))",
    )
    assert 'format: made (it begins with {"records")' in text
    assert "a  array(float64, (3,))  from x" in text
    assert "k2" in text
    assert os.listdir(tmp_path) == ["source"]
    assert good("import", source, tmp_path / "out.frec").startswith("format: made (it begins with")
    data = json.loads(good("import", source, "--dry-run", "--json"))
    assert data["fields"][2] == {"name": "label", "type": "string", "from": "cls", "origin": "made"}


# Shards


@pytest.mark.parametrize("counted", ["yes", "no"])
def test_shards_divide_the_source_evenly(source: Path, out: Path, counted: str) -> None:
    summary = pack_with(source, out, shards=3, settings={"counted": counted})
    paths = [Path(path) for path in summary.paths]
    assert [path.name for path in paths] == [f"out-{i:05d}-of-00003.frec" for i in range(3)]
    counts = [len(rows(path)) for path in paths]
    assert max(counts) - min(counts) <= 1
    assert rows(*paths) == [value(i) for i in range(N)]


def test_no_shard_exceeds_its_size(source: Path, out: Path) -> None:
    summary = pack_with(source, out, shard_size=1 << 20)
    sizes = [os.path.getsize(path) for path in summary.paths]
    assert len(sizes) > 2
    assert max(sizes) <= 1 << 20
    assert rows(*map(Path, summary.paths)) == [value(i) for i in range(N)]


# Bad sources


def test_a_bad_record_ends_the_import_and_the_records_before_it_stay(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", N, bad=[4500])
    with pytest.raises(
        fr.FastRecordError, match=r"source: record 4500: its CRC is wrong: .*--bad-files skip.*FR753"
    ) as err:
        pack_with(source, out)
    assert "4,500 records: `--resume` continues from there" in err.value.__notes__[0]
    assert rows(out) == [value(i) for i in range(4500)]
    pack_with(source, out, mode="resume", bad_files="skip")
    assert rows(out) == [value(i) for i in range(N) if i != 4500]
    with fr.Reader(out) as reader:
        assert reader.complete
        assert reader.metadata["skipped"] == [{"key": f"{source}: record 4500", "reason": "its CRC is wrong"}]


def test_a_source_that_is_cut_short_is_resumed_when_it_is_whole(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", 9000, end=4999)
    text = {"label": "string"}
    with pytest.raises(fr.FastRecordError, match="record 4999: the file is cut short"):
        pack_with(source, out, types=text)
    assert len(rows(out)) == 4999
    write_source(source, 9000)
    summary = pack_with(source, out, types=text, mode="resume")
    assert (summary.records, summary.packed) == (9000, 4001)
    assert [row["count"] for row in rows(out)] == list(range(9000))


def test_names_of_labels_are_read_before_anything_is_stored(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", N, end=4999)
    with pytest.raises(fr.FastRecordError, match="record 4999: the file is cut short") as err:
        pack_with(source, out)
    assert err.value.__notes__[0].startswith("nothing is stored")
    assert not out.exists()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"keys": {"4700": "k12"}}, r"record 4700: an earlier record has the key 'k12'.*FR755"),
        ({"keys": {"4700": "k4699"}}, r"record 4700: an earlier record has the key 'k4699'.*FR755"),
        ({"lengths": {"4700": 4}}, r"record 4700: .*x.*--type.*FR754"),
        ({"counts": {"4700": "many"}}, r"record 4700: .*count.*FR754"),
        ({"images": {"4700": "no image"}}, r"record 4700: .*not.*image.*FR753"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_can_be_left_out(
    rules: dict[str, Any], message: str, out: Path, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "source", N, **rules)
    with pytest.raises(fr.FastRecordError, match=message):
        pack_with(source, out)
    assert rows(out) == [value(i) for i in range(4700)]
    summary = pack_with(source, out, bad_files="skip", mode="overwrite")
    assert [key for key, _ in summary.skipped] == [f"{source}: record 4700"]
    assert rows(out) == [value(i) for i in range(N) if i != 4700]


def test_several_kinds_of_bad_records_are_all_left_out(out: Path, tmp_path: Path) -> None:
    rules = {
        "lengths": {"10": 4, "4000": 2},
        "images": {"9": "no image"},
        "counts": {"11": "many"},
        "keys": {"12": "k0"},
    }
    source = write_source(tmp_path / "source", N, bad=[8], **rules)
    summary = pack_with(source, out, bad_files="skip")
    left_out = [8, 9, 10, 11, 12, 4000]
    assert sorted(key for key, _ in summary.skipped) == sorted(f"{source}: record {i}" for i in left_out)
    assert rows(out) == [value(i) for i in range(N) if i not in left_out]


def test_nothing_is_left_of_a_source_whose_first_record_is_bad(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", 3, bad=[0])
    with pytest.raises(fr.FastRecordError, match="record 0"):
        pack_with(source, out)
    assert not out.exists()
    for rules in ({"bad": [0, 1, 2]}, {"records": 0}):
        write_source(source, **({"records": 3} | rules))
        with pytest.raises(fr.FastRecordError, match=r"no record is good|holds no records"):
            pack_with(source, out, bad_files="skip")
        assert not out.exists()


# Further runs


def test_appended_records_keep_classes_and_refuse_taken_keys(source: Path, out: Path, tmp_path: Path) -> None:
    pack_with(source, out)
    more = write_source(tmp_path / "more", 2, keys={"0": "new 0", "1": "new 1"})
    summary = pack_with(more, out, mode="append")
    assert (summary.records, summary.packed) == (N + 2, 2)
    assert rows(out)[N:] == [value(i) | {"key": f"new {i}"} for i in range(2)]
    with pytest.raises(fr.FastRecordError, match="has the key 'new 0'"):
        pack_with(more, out, mode="append")
    assert len(rows(out)) == N + 2


def test_another_source_or_other_fields_are_not_resumed(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", N, bad=[4500])
    with pytest.raises(fr.FastRecordError):
        pack_with(source, out)
    other = write_source(tmp_path / "other", N)
    with pytest.raises(fr.FastRecordError, match=r"other names.*FR732"):
        pack_with(other, out, mode="resume")
    with pytest.raises(fr.FastRecordError, match=r"FR731"):
        pack_with(source, out, mode="resume", crop_index=True)
    with pytest.raises(fr.FastRecordError, match=r"FR403"):
        pack_with(source, out, mode="resume", mapping={"image": "jpg"})
    assert len(rows(out)) == 4500


def test_a_source_of_the_same_name_with_other_records_is_not_resumed(out: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", N, bad=[4500])
    with pytest.raises(fr.FastRecordError):
        pack_with(source, out)
    write_source(source, N, keys={"4499": "other"})
    with pytest.raises(fr.FastRecordError, match=r"record 4499: key is 'other', where the file has 'k4499'.*FR732"):
        pack_with(source, out, mode="resume")
    write_source(source, 3000)
    with pytest.raises(fr.FastRecordError, match=r"it has no record 4,499.*FR732"):
        pack_with(source, out, mode="resume")
    write_source(source, N, bad=[4499])
    assert pack_with(source, out, mode="resume").records == N


def test_a_killed_import_goes_on_where_its_last_commit_was(source: Path, out: Path) -> None:
    script = f"""
import os, signal
from fastrecord.interchange import registry
from tests.support.packing import pack_with
from tests.support.formats.sources import MadeFormat
registry._others = lambda: {{"made": type("E", (), {{"dist": None, "load": lambda self: MadeFormat()}})()}}
def stop(state):
    if state.files > 4000:
        os.kill(os.getpid(), signal.SIGKILL)
pack_with({str(source)!r}, {str(out)!r}, commit_bytes=1000, progress=stop)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    kept = len(rows(out))
    assert 0 < kept < N
    summary = pack_with(source, out, mode="resume")
    assert summary.packed == N - kept
    assert rows(out) == [value(i) for i in range(N)]


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--map", "image,x=x"], "'image' is not NAME=VALUE"),
        (["--map", "image,"], "'' is not NAME=VALUE"),
        (["--map", "image,image"], "'image' is given twice"),
        (["--map", "a=x,a=count"], "'a' is given twice"),
        (["--type", "x=integer"], "'integer' is no type"),
        (["--set", "speed=3"], "made by the tests has no setting 'speed': its settings are counted"),
        (["--set", "counted=maybe"], "the setting 'counted' of made by the tests is one of yes, no, not 'maybe'"),
        (["--compression", "lz4", "--shard-size", "1MB"], "give --shards, not --shard-size"),
        (["--map", "x=x", "--crop-index"], "these records have 0 of them"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str, source: Path, out: Path) -> None:
    assert message in failed("import", source, out, *arguments, status=2)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--map", "y=nothing"], r"no field is called 'nothing': the source has jpg (image), x"),
        (["--type", "y=int8"], r"no field to store is called 'y'"),
        (["--type", "image=int8"], r"field 'jpg' is image (made), which cannot become int8"),
        (["--format", "nonsense"], r"no format is called 'nonsense'"),
    ],
)
def test_wrong_fields_and_formats_are_named(arguments: list[str], message: str, source: Path, out: Path) -> None:
    assert message in failed("import", source, out, *arguments)
    assert not out.exists()


@pytest.mark.parametrize(
    ("pattern", "first"), [("s-{8..10}", "s-8"), ("s-{0..10}", "s-0"), ("s-{00..10}", "s-00"), ("s-{8..010}", "s-008")]
)
def test_ranges_are_padded_as_in_a_shell(pattern: str, first: str, tmp_path: Path) -> None:
    for number in range(11):
        for name in (f"s-{number}", f"s-{number:02d}", f"s-{number:03d}"):
            (tmp_path / name).touch()
    assert os.path.basename(expand(str(tmp_path / pattern))[0]) == first


@pytest.mark.parametrize("form", ["auto", "webdataset", "numpy"])
def test_a_pipe_is_refused_at_once(form: str, out: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    message = failed("import", tmp_path / "pipe.tar", out, "--format", form)
    assert "pipe.tar: is a pipe, which cannot be read" in message


@pytest.mark.timeout(20)
def test_a_range_without_end_stops_at_the_first_missing_file(out: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"s-0\.tar"):
        pack_with(tmp_path / "s-{0..9999999999}.tar", out)


def test_the_source_is_never_replaced(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(fr.FastRecordError, match=r"FR742"):
        pack_with(source, source, mode="overwrite")
    assert source.read_bytes() == before


def test_the_help_names_every_format() -> None:
    text = " ".join(good("import", "--help").split())
    listed = text.split("Format of the source: ")[1].split(", or one of")[0].split(", ")
    assert listed == sorted(registry._MODULES)


def test_something_unknown_is_described(out: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello world")
    assert "of no known format (b'hello world'): name the format with --format" in failed(
        "import", tmp_path / "text", out
    )
    assert "No such file" in failed("import", tmp_path / "nothing", out)


# Keys


def test_every_repeated_key_is_found_and_no_other() -> None:
    seen, plain = SeenKeys(), set[str]()
    for start in range(0, 400_000, 5000):
        keys = [f"{i * 7919 % 390_000}" for i in range(start, start + 5000)]
        expected = []
        for i, key in enumerate(keys):
            if key in plain:
                expected.append(start + i)
            plain.add(key)
        assert seen.add(dict(enumerate(keys, start))) == expected
