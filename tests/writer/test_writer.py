from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import encode

SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "score": "float64", "key": fr.string()})
GOOD: dict[str, Any] = {"data": b"abc", "label": 1, "score": 0.5, "key": "k"}


def labels(path: Path) -> list[int]:
    with fr.Reader(path) as reader:
        report = reader.verify()
        assert report["ok"], report
        return reader.column("label").tolist()  # type: ignore[no-any-return]


def write(path: Path, numbers: range, mode: str = "x", **options: Any) -> Path:
    with fr.Writer(path, None if mode == "a" else SCHEMA, mode, **options) as writer:
        for number in numbers:
            writer.append({**GOOD, "label": number})
    return path


def stopped(writer: fr.Writer, commits: int, error: BaseException) -> None:
    """Commit some records one by one, append one more, and leave the block by an exception."""
    with writer:
        for _ in range(commits):
            writer.append(GOOD)
            writer.commit()
        writer.append(GOOD)
        raise error


def test_append_returns_record_numbers_that_go_on_from_session_to_session(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        assert [writer.append(GOOD) for _ in range(3)] == [0, 1, 2]
        assert (len(writer), writer.committed) == (3, 0)
        assert writer.commit() == 1
        assert (len(writer), writer.committed) == (3, 3)
        assert writer.commit() == 1
        assert writer.bytes_written > 3 * 3
    with fr.Writer(tmp_path / "a.frec", mode="a") as writer:
        assert len(writer) == 3
        assert writer.schema == SCHEMA
        assert writer.append(GOOD) == 3


def test_mode_a_needs_a_file_and_goes_on_behind_its_records(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.frec"):
        fr.Writer(tmp_path / "a.frec", mode="a")
    assert list(tmp_path.iterdir()) == []
    path = write(tmp_path / "a.frec", range(3))
    write(path, range(3, 5), "a")
    assert labels(path) == [0, 1, 2, 3, 4]
    before = path.read_bytes()
    fr.Writer(path, mode="a").close()
    assert path.read_bytes() == before


def test_mode_w_shows_the_new_file_at_close_and_not_before(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", range(3))
    old = fr.Reader(path)
    with fr.Writer(path, SCHEMA, "w") as writer:
        writer.append({**GOOD, "label": 77})
        writer.commit()
        assert labels(path) == [0, 1, 2]
        assert len(list(tmp_path.iterdir())) == 2
    assert labels(path) == [77]
    assert [path.name for path in tmp_path.iterdir()] == ["a.frec"]
    assert [old[number]["label"] for number in range(3)] == [0, 1, 2]


def test_an_exception_before_the_first_commit_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped(fr.Writer(tmp_path / "a.frec", SCHEMA), 0, KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []


def test_an_exception_drops_what_is_behind_the_last_commit(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="stop"):
        stopped(fr.Writer(tmp_path / "a.frec", SCHEMA), 3, KeyError("stop"))
    assert labels(tmp_path / "a.frec") == [1, 1, 1]
    assert fr.Reader(tmp_path / "a.frec").tail_bytes == 0


def test_a_closed_writer_refuses_work_and_may_be_closed_again(tmp_path: Path) -> None:
    writer = fr.Writer(tmp_path / "a.frec", SCHEMA)
    writer.append(GOOD)
    writer.close()
    writer.close()
    writer.abort()
    for call in (
        lambda: writer.append(GOOD),
        writer.commit,
        lambda: writer.append_files("data", ["x"], {"label": [1], "score": [1], "key": [""]}),
    ):
        with pytest.raises((ValueError, OSError), match=r"the writer is closed|No such file"):
            call()
    assert labels(tmp_path / "a.frec") == [1]


def test_a_directory_is_no_file_to_write(tmp_path: Path) -> None:
    for mode, error in (("x", FileExistsError), ("a", IsADirectoryError), ("w", OSError)):
        with pytest.raises(error, match=tmp_path.name):
            fr.Writer(tmp_path, None if mode == "a" else SCHEMA, mode)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fr.Writer(tmp_path / "nowhere" / "a.frec", SCHEMA)


def test_arguments_are_checked_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='mode is "x", "a" or "w", not "r"'):
        fr.Writer(tmp_path / "a.frec", SCHEMA, "r")
    with pytest.raises(ValueError, match="commit_bytes is at least 1"):
        fr.Writer(tmp_path / "a.frec", SCHEMA, commit_bytes=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field", "detail"),
    [
        ({"label": None}, "label", "an integer of 64 bits is wanted, not NoneType"),
        ({"label": "1"}, "label", "an integer of 64 bits is wanted, not str"),
        ({"label": 1.0}, "label", "an integer of 64 bits is wanted, not float"),
        ({"label": 2**63}, "label", "an integer of 64 bits is wanted"),
        ({"label": -(2**63) - 1}, "label", "an integer of 64 bits is wanted"),
        ({"score": "1"}, "score", "a float is wanted, not str"),
        ({"score": None}, "score", "a float is wanted, not NoneType"),
        ({"score": 10**400}, "score", "a float is wanted"),
        ({"key": b"k"}, "key", "a str is wanted, not bytes"),
        ({"key": 5}, "key", "a str is wanted, not int"),
        ({"key": "\ud800"}, "key", "text that UTF-8 can hold is wanted"),
        ({"data": "text"}, "data", "a bytes-like object is wanted, not str"),
        ({"data": [1, 2]}, "data", "a bytes-like object is wanted, not list"),
        ({"data": np.zeros(2, np.float32)}, "data", "a bytes-like object is wanted, not ndarray"),
        ({"more": 1}, "more", "no such field: the file has {data: bytes, label: int64, score: float64, key: string}"),
        ({5: 1}, "5", "no such field"),
    ],
)
def test_a_value_that_does_not_fit_names_record_and_field_and_appends_nothing(
    tmp_path: Path, change: dict[Any, Any], field: str, detail: str
) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        writer.append({**GOOD, "label": 10})
        with pytest.raises(fr.errors.SchemaError) as caught:
            writer.append({**GOOD, **change})
        assert f"a.frec: record 1, field {field}: {detail}" in str(caught.value)
        assert len(writer) == 1
        assert writer.append({**GOOD, "label": 11}) == 1
    assert labels(tmp_path / "a.frec") == [10, 11]


@pytest.mark.parametrize("field", list(GOOD))
def test_a_missing_value_names_record_and_field_and_appends_nothing(tmp_path: Path, field: str) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        with pytest.raises(fr.errors.SchemaError, match=f"record 0, field {field}: the record has no value for it"):
            writer.append({name: value for name, value in GOOD.items() if name != field})
        assert len(writer) == 0


def test_bytes_that_are_no_image_are_refused_for_an_image_field(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "key": fr.string()})) as writer:
        for data in (b"", b"no image", encode(0)[:20]):
            with pytest.raises(fr.errors.SchemaError, match="record 0, field image"):
                writer.append({"image": data, "key": ""})
        assert writer.append({"image": encode(0), "key": ""}) == 0


class Lazy(Mapping[str, Any]):
    """A record that makes its values on access and inspects the writer meanwhile."""

    def __init__(self, writer: fr.Writer, error: Exception | None = None) -> None:
        self.writer = writer
        self.error = error

    def __getitem__(self, key: str) -> Any:
        if self.error:
            raise self.error
        return {**GOOD, "label": len(self.writer)}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(GOOD)

    def __len__(self) -> int:
        return len(GOOD)


def test_a_record_may_be_any_mapping_that_uses_the_writer_itself(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        for _ in range(3):
            writer.append(Lazy(writer))
    assert labels(tmp_path / "a.frec") == [0, 1, 2]


def test_the_error_of_a_record_that_fails_by_itself_is_the_one_that_is_seen(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        with pytest.raises(FileNotFoundError, match="no cat"):
            writer.append(Lazy(writer, FileNotFoundError("no cat")))
        with pytest.raises(TypeError, match="Mapping"):
            writer.append([GOOD])  # type: ignore[arg-type]
        assert len(writer) == 0


def test_metadata_comes_back_as_it_went_in(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "classes": ["größe", "猫", "😀", ""],
        "z first": {"b": 1, "a": [None, True, False, {}]},
        "integers": [0, -(2**63), 2**63 - 1, 2**64 - 1],
        "floats": [0.5, -0.0, 1e300, 0.1],
    }
    with fr.Writer(tmp_path / "a.frec", SCHEMA, metadata=metadata) as writer:
        assert writer.metadata == metadata
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.metadata == metadata
    assert list(reader.metadata) == list(metadata)
    assert list(reader.metadata["z first"]) == ["b", "a"]
    reader.metadata["classes"].append("x")
    assert reader.metadata == metadata


def test_floats_of_metadata_come_back_to_the_last_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    floats = [
        *rng.random(1000).tolist(),
        *np.exp(rng.normal(0, 99, 1000)).tolist(),
        1 / 3,
        5e-324,
        1.7976931348623157e308,
    ]
    with fr.Writer(tmp_path / "a.frec", SCHEMA, metadata={"floats": floats}) as writer:
        assert writer.metadata["floats"] == floats
    assert fr.Reader(tmp_path / "a.frec").metadata["floats"] == floats


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"a": float("nan")}, ValueError, "metadata: .*not JSON compliant"),
        ({"a": [float("inf")]}, ValueError, "metadata: .*not JSON compliant"),
        ({1: "a"}, TypeError, "metadata: keys are str, not 1"),
        ({"a": [{None: "a"}]}, TypeError, "metadata: keys are str, not None"),
        ({"a": ({"b": {True: "a"}},)}, TypeError, "metadata: keys are str, not True"),
        ({"a": 2**64}, ValueError, "metadata: 18446744073709551616 does not fit in 64 bits"),
        ({"a": [-(2**63) - 1]}, ValueError, "does not fit in 64 bits"),
        ({"a": {1, 2}}, TypeError, "metadata: .*set is not JSON serializable"),
        ({"a": np.int64(1)}, TypeError, "metadata: .*int64 is not JSON serializable"),
        ({"a": b"b"}, TypeError, "metadata: .*bytes is not JSON serializable"),
        ({"a": "\ud800"}, ValueError, "metadata"),
        (["a"], ValueError, "metadata"),
        (5, TypeError, "metadata"),
    ],
    ids=repr,
)
def test_metadata_that_json_would_change_or_lose_is_refused(
    tmp_path: Path, metadata: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fr.Writer(tmp_path / "a.frec", SCHEMA, metadata=metadata)
    assert list(tmp_path.iterdir()) == []
    with fr.Writer(tmp_path / "a.frec", SCHEMA, metadata={"kept": 1}) as writer:
        with pytest.raises(error, match=message):
            writer.metadata = metadata
        assert writer.metadata == {"kept": 1}


def test_metadata_nested_beyond_reason_is_an_error(tmp_path: Path) -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = {"a": nested}
    around: dict[str, Any] = {}
    around["self"] = around
    for metadata in (nested, around, {"a": nested}):
        with pytest.raises((ValueError, RecursionError)):
            fr.Writer(tmp_path / "a.frec", SCHEMA, metadata=metadata)


def test_metadata_and_complete_are_replaced_with_the_next_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, SCHEMA, metadata={"a": 1}, complete=False) as writer:
        writer.append(GOOD)
        writer.commit()
        reader = fr.Reader(path)
        assert (reader.metadata, reader.complete) == ({"a": 1}, False)
        writer.metadata = {"b": 2}
        writer.complete = True
        assert (writer.metadata, writer.complete) == ({"b": 2}, True)
        assert not reader.refresh()
        writer.commit()
        assert reader.refresh()
        assert (reader.metadata, reader.complete) == ({"b": 2}, True)
    with fr.Writer(path, mode="a") as writer:
        assert writer.metadata == {"b": 2}
        writer.append(GOOD)
    assert fr.Reader(path).metadata == {"b": 2}
