"""Compressed fields: settings, values read back, and the reports of file, writer and log."""

from __future__ import annotations

import json
import logging
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastrecord as fr
from tests.support.commands import good


def smooth(count: int, *shape: int) -> NDArray[np.uint8]:
    """Image-like patches: gradients with a little noise."""
    rng = np.random.default_rng(count)
    rows = np.arange(np.prod(shape)).reshape(shape) // 7
    noise = rng.random((count, *shape)) < 0.1
    return (rows + noise + rng.integers(0, 200, (count, *[1] * len(shape)))).astype(np.uint8)


def texts(count: int) -> list[str]:
    """Short, similar texts."""
    return [json.dumps({"path": f"train/n0{i % 97:04}/{i}.jpg", "label": i * 7 % 1000}) for i in range(count)]


def test_extend_compresses_what_append_would(tmp_path: Path) -> None:
    schema = {"a": fr.array("uint8", (32, 32, 3), "lz4"), "t": fr.string("zstd"), "n": fr.FieldType("int64")}
    patches, names, numbers = smooth(2000, 32, 32, 3), texts(2000), np.arange(2000)
    with fr.Writer(tmp_path / "a.frec", schema) as one:
        for i in range(2000):
            one.append({"a": patches[i], "t": names[i], "n": i})
    with fr.Writer(tmp_path / "b.frec", schema) as many:
        assert many.extend({"a": patches, "t": names, "n": numbers}) == 0
    assert one.compression() == many.compression()
    assert many.compression()["a"]["ratio"] > 1.2
    for name in ("a.frec", "b.frec"):
        batch = fr.Reader(tmp_path / name).read_batch(range(2000))
        np.testing.assert_array_equal(batch["a"], patches)
        assert batch["t"] == names


def test_auto_says_what_it_chose_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, rng = tmp_path / "x.frec", np.random.default_rng(1)
    schema = {"noise": fr.bytes_("auto"), "same": fr.string("auto"), "plain": fr.string()}
    with caplog.at_level(logging.INFO, "fastrecord"), fr.Writer(path, schema) as writer:
        assert writer.compression()["noise"]["codec"] is None
        assert writer.compression()["noise"]["ratio"] is None
        for _ in range(50):
            writer.append({"noise": rng.bytes(1000), "same": "again and again " * 100, "plain": "x"})
        assert not caplog.records
    chosen = writer.compression()
    assert set(chosen) == {"noise", "same"}
    assert chosen["noise"]["codec"] == "none"
    assert chosen["same"]["codec"] in ("lz4", "zstd")
    assert chosen["same"]["ratio"] > 10
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    assert f"field same: compression {chosen['same']['codec']}" in caplog.text
    assert "200 MB/s" in caplog.text
    reader = fr.Reader(path)
    assert reader.schema["noise"].compression is None
    kept = reader.schema["same"].compression
    assert kept is not None
    assert kept.codec == chosen["same"]["codec"]
    said = reader.compression()
    assert set(said) == {"same"}
    assert said["same"].keys() == chosen["same"].keys()
    assert said["same"]["bytes"] == 50 * 1600
    assert said["same"]["ratio"] == pytest.approx(chosen["same"]["ratio"])


def _texts_of(reader: fr.Reader) -> list[str]:
    return list(reader.read_batch(range(3000), ["text"])["text"])


def test_a_dictionary_serves_later_writers_pickled_readers_and_forked_children(tmp_path: Path) -> None:
    path, names = tmp_path / "x.frec", texts(3000)
    schema = {"text": fr.string(fr.Compression("zstd", dictionary=8192))}
    with fr.Writer(path, schema) as writer:
        writer.extend({"text": names})
    first = writer.compression()["text"]
    assert len(first["dictionaries"]) == 1
    with fr.Writer(path, None, "a") as writer:
        writer.extend({"text": names})
        assert writer.compression()["text"]["dictionaries"] == first["dictionaries"]
    reader = fr.Reader(path)
    assert reader.schema["text"].compression == fr.Compression("zstd", dictionary=True)
    assert reader.compression()["text"]["dictionaries"] == first["dictionaries"]
    assert _texts_of(reader) == names
    assert _texts_of(pickle.loads(pickle.dumps(reader))) == names
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(_texts_of, (reader,)) == names


def test_info_shows_codec_and_ratio(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, {"text": fr.string("zstd"), "n": "int64"}) as writer:
        writer.append({"text": "word " * 1000, "n": 1})
    shown = good("info", path)
    assert "text zstd level 3 (" in shown
    assert "times smaller)" in shown
    about = json.loads(good("info", path, "--json"))
    assert about["compression"]["text"]["codec"] == "zstd"
    assert about["compression"]["text"]["ratio"] > 10


def test_a_compression_is_what_one_would_write() -> None:
    assert fr.Compression("zstd") == fr.Compression("zstd", level=3)
    assert fr.string("lz4").compression == fr.Compression("lz4")
    for how in (fr.Compression("lz4"), fr.Compression("zstd", level=7, dictionary=True), fr.Compression("auto")):
        assert eval(repr(how), {"Compression": fr.Compression}) == how
        assert pickle.loads(pickle.dumps(how)) == how
        assert hash(how) == hash(pickle.loads(pickle.dumps(how)))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: fr.Compression("gzip"), ValueError, '"lz4", "zstd" or "auto", not'),
        (lambda: fr.string("gzip"), ValueError, '"lz4", "zstd" or "auto", not'),
        (lambda: fr.string(3), TypeError, "fastrecord.Compression"),  # type: ignore[arg-type]
        (lambda: fr.Compression("zstd", level=0), ValueError, "1 to 22"),
        (lambda: fr.Compression("zstd", level=23), ValueError, "1 to 22"),
        (lambda: fr.Compression("zstd", level=2.5), TypeError, "int"),  # type: ignore[arg-type]
        (lambda: fr.Compression("zstd", dictionary=3), ValueError, "256 to 16777216 bytes"),
        (lambda: fr.Compression("lz4", level=3), ValueError, "belong to zstd"),
        (lambda: fr.Compression("auto", dictionary=True), ValueError, "belong to zstd"),
    ],
)
def test_what_a_compression_cannot_be_is_said_at_once(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("how", ["auto", fr.Compression("zstd", dictionary=4096)])
def test_an_empty_file_holds_no_choice_and_takes_one_that_is_given_again(tmp_path: Path, how: Any) -> None:
    path = tmp_path / "train.frec"
    values = [f"the {i % 7}th of the texts, much like {i % 5} others of the texts" * 3 for i in range(3000)]
    with fr.Writer(path, {"text": fr.string(how)}):
        pass
    with fr.Reader(path) as reader:
        decided = None if how == "auto" else fr.Compression("zstd")
        assert (len(reader), reader.schema["text"].compression) == (0, decided)
    with fr.Writer(path, {"text": fr.string(how)}, "a") as writer:
        assert writer.schema["text"] == fr.string(how)
        writer.extend({"text": values})
    with fr.Reader(path) as reader:
        decided = reader.schema["text"].compression
        assert decided is not None
        assert decided.codec in ("lz4", "zstd")
        assert reader.read_batch(range(3000))["text"] == values
    assert path.stat().st_size < sum(map(len, values))
