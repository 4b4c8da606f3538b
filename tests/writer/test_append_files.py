from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.conftest import encode
from tests.support.child import run_child

SCHEMA = fr.Schema({"label": "int64", "data": fr.bytes_(), "score": "float64", "key": fr.string()})


def make_files(folder: Path, count: int) -> list[Path]:
    """Write files of very different sizes, so that reader threads finish out of order."""
    rng = np.random.default_rng(count)
    paths = [folder / f"{number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(rng.bytes(500_000 if number % 17 == 0 else number % 50))
    return paths


def columns(count: int) -> dict[str, Any]:
    return {
        "label": np.arange(count),
        "score": [number / 2 for number in range(count)],
        "key": [str(n) for n in range(count)],
    }


def test_files_are_appended_in_order_whatever_their_size(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 300)
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        writer.append({"label": -1, "data": b"first", "score": 0, "key": ""})
        assert writer.append_files("data", paths, columns(300)) == []
        assert writer.append_files("data", [str(paths[0])], columns(1)) == []
        assert len(writer) == 302
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.verify()["ok"]
    assert reader.column("label").tolist() == [-1, *range(300), 0]
    for number, path in enumerate([*paths, paths[0]]):
        record = reader[number + 1]
        assert record["data"] == path.read_bytes()
        assert (record["score"], record["key"]) == (number % 300 / 2, str(number % 300))


def bad_inputs(folder: Path) -> dict[str, Path]:
    inputs = {name: folder / name for name in ("missing", "folder", "pipe", "dangling", "text")}
    inputs["folder"].mkdir()
    os.mkfifo(inputs["pipe"])
    inputs["dangling"].symlink_to("nowhere")
    inputs["text"].write_bytes(b"no image")
    return inputs


def test_skip_leaves_bad_files_out_and_says_which_and_why(tmp_path: Path) -> None:
    good = tmp_path / "good.png"
    good.write_bytes(encode(0, kind="PNG"))
    bad = bad_inputs(tmp_path)
    paths = [good, bad["missing"], bad["folder"], good, bad["pipe"], bad["dangling"], bad["text"], good]
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "label": "int64"})) as writer:
        skipped = writer.append_files("image", paths, {"label": range(8)}, on_error="skip")
        assert len(writer) == 3
    assert [position for position, _ in skipped] == [1, 2, 4, 5, 6]
    reasons = {position: str(error) for position, error in skipped}
    assert all(str(paths[position]) in reason for position, reason in reasons.items())
    assert "No such file" in reasons[1]
    assert "irectory" in reasons[2]
    assert "not a regular file" in reasons[4]
    assert "the link leads to a file that does not exist" in reasons[5]
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.column("label").tolist() == [0, 3, 7]
    assert reader.verify()["ok"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing", FileNotFoundError),
        ("folder", IsADirectoryError),
        ("pipe", fr.errors.DecodeError),
        ("dangling", FileNotFoundError),
        ("text", fr.errors.DecodeError),
    ],
)
def test_raise_stops_at_the_first_bad_file_and_keeps_what_was_before_it(
    tmp_path: Path, name: str, error: type[Exception]
) -> None:
    good = tmp_path / "good.png"
    good.write_bytes(encode(0, kind="PNG"))
    bad = bad_inputs(tmp_path)
    paths = [good, good, bad[name], good, bad["missing"]]
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "label": "int64"})) as writer:
        with pytest.raises(error, match=name):
            writer.append_files("image", paths, {"label": range(5)})
        assert len(writer) == 2
        writer.append_files("image", [good], {"label": [9]})
    assert fr.Reader(tmp_path / "a.frec").column("label").tolist() == [0, 1, 9]


def test_a_file_that_may_not_be_read_is_a_permission_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0)
    tmp_path.chmod(0o777)
    script = """
        writer = fr.Writer("a.frec", SCHEMA)
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            writer.append_files("data", ["secret"], {"label": [1], "key": [""]})
        except PermissionError as error:
            print(error.filename)
        print(writer.append_files("data", ["secret"], {"label": [1], "key": [""]}, on_error="skip"))
    """
    first, second = run_child(script, tmp_path).splitlines()
    assert first == "secret"
    assert second == "[(0, PermissionError(13, 'Permission denied'))]"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": [1, 2]}, "field label: 2 values for 1 files"),
        ({"key": []}, "field key: 0 values for 1 files"),
        ({"label": ["1"]}, "field label: an integer of 64 bits is wanted, not str '1'"),
        ({"label": 1}, "field label"),
        ({"label": np.array([2**64 - 1], np.uint64)}, "field label"),
        ({"score": [None]}, "field score"),
        ({"key": "k"}, "field key"),
        ({"key": None}, "field key"),
        ({"more": [1]}, "no field .*more.*: the file has {label: int64, data: bytes"),
        ({"data": [b""]}, "field data: both files and values are given for it"),
    ],
    ids=repr,
)
def test_values_that_do_not_fit_name_the_field_and_append_nothing(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        with pytest.raises(fr.errors.SchemaError, match=message):
            writer.append_files("data", [tmp_path / "x"], {**columns(1), **change})
        for missing in ("label", "key"):
            with pytest.raises(fr.errors.SchemaError, match=f"no values for field {missing}"):
                writer.append_files("data", [tmp_path / "x"], {n: v for n, v in columns(1).items() if n != missing})
        assert len(writer) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"label": [3], "score": [1], "key": ("k",)},
        {"label": np.array([3], np.uint8), "score": np.array([1], np.float16), "key": np.array(["k"])},
        {"label": torch.tensor([3]), "score": torch.tensor([1.0]), "key": ["k"]},
        {"label": range(3, 4), "score": [True], "key": ["k"]},
    ],
    ids=repr,
)
def test_values_come_in_any_sequence_or_array(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        writer.append_files("data", [tmp_path / "x"], values)
    assert fr.Reader(tmp_path / "a.frec")[0] == {"label": 3, "data": b"x", "score": 1.0, "key": "k"}


def test_arguments_are_checked_by_name(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA) as writer:
        with pytest.raises(ValueError, match='on_error is "raise" or "skip", not "ignore"'):
            writer.append_files("data", [], columns(0), on_error="ignore")
        with pytest.raises(fr.errors.SchemaError, match=r"no field .*nope"):
            writer.append_files("nope", [], columns(0))
        with pytest.raises(fr.errors.SchemaError, match="files and images go into a field of type image or bytes"):
            writer.append_files("key", [tmp_path], {"label": [1], "score": [1], "data": [b""]})
        with pytest.raises(TypeError, match="str"):
            writer.append_files("data", "abc", columns(3))
        with pytest.raises(TypeError, match="Mapping"):
            writer.append_files("data", [], [])  # type: ignore[arg-type]


INTERRUPTED = """
    open("file", "wb").write(bytes(1000))
    count = 1_000_000
    values = {"label": np.arange(count), "key": ["k"] * count}
    def interrupt():
        while os.path.getsize("a.frec") <= 4096:
            pass
        os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_leaves_a_prefix_that_can_be_committed(tmp_path: Path) -> None:
    script = """
    writer = fr.Writer("a.frec", SCHEMA)
    threading.Thread(target=interrupt).start()
    try:
        writer.append_files("data", ["file"] * count, values)
    except KeyboardInterrupt:
        done = len(writer)
        assert 0 < done < count
        writer.append(record(7))
        writer.close()
        reader = fr.Reader("a.frec")
        assert reader.verify()["ok"] and reader.column("label").tolist() == [*range(done), 7]
        print("interrupted", threading.active_count())
    """
    assert run_child(INTERRUPTED + script, tmp_path) == "interrupted 1\n"


def test_ctrl_c_that_leaves_the_block_leaves_no_file_without_a_commit(tmp_path: Path) -> None:
    script = """
    try:
        with fr.Writer("a.frec", SCHEMA) as writer:
            threading.Thread(target=interrupt).start()
            writer.append_files("data", ["file"] * count, values)
    except KeyboardInterrupt:
        print(os.listdir("."))
    """
    assert run_child(INTERRUPTED + script, tmp_path) == "['file']\n"
