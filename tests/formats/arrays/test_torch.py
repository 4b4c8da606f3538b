from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import TensorDataset

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.format import Found
from tests.support.formats.exchanging import take

TORCH = registry.load("torch")
COUNT = 20
TENSORS = {
    "x": torch.rand(COUNT, 3, 2),
    "labels": torch.arange(COUNT) % 3,
    "half": torch.rand(COUNT).half(),
    "brain": torch.rand(COUNT, 4).bfloat16(),
    "flag": torch.arange(COUNT) % 2 == 0,
    "bytes": torch.arange(COUNT, dtype=torch.uint8),
}
TYPES = {
    "x": "array(float32, (3, 2))",
    "labels": "int64",
    "half": "float16",
    "brain": "array(bfloat16, (4,))",
    "flag": "bool",
    "bytes": "uint8",
}


def opened(path: Path | str, **settings: str) -> Any:
    return TORCH.open(str(path), settings)


def compare(path: Path, expected: dict[str, Any], frec: Path) -> None:
    """Import a file into a .frec file, and compare all values."""
    with opened(path) as source:
        assert {field.name for field in source.fields} == set(expected)
        with fr.Writer(frec, {field.name: field.type for field in source.fields}, "w") as writer:
            for rows in source.read(0, [field.name for field in source.fields]):
                writer.extend(rows.columns)
        for name, values in expected.items():
            assert len(take(source, 15, [name])[name]) == len(values) - 15
    batch = fr.Reader(frec).read_batch(range(COUNT))
    for name, values in expected.items():
        got: Any = torch.as_tensor(batch[name])
        assert torch.equal(got.view(torch.bfloat16) if values.dtype == torch.bfloat16 else got, values), name


@pytest.mark.parametrize("legacy", [False, True])
def test_dicts_lists_and_single_tensors_come_as_fields(tmp_path: Path, *, legacy: bool) -> None:
    def save(value: Any) -> Path:
        torch.save(value, tmp_path / "data.pt", _use_new_zipfile_serialization=not legacy)
        return tmp_path / "data.pt"

    path = save(TENSORS)
    assert registry.recognise(str(path))[0] is TORCH
    with opened(path) as source:
        assert {field.name: str(field.type) for field in source.fields} == TYPES
        assert [field.rename for field in source.fields if field.rename] == ["label"]
    compare(path, TENSORS, tmp_path / "a.frec")
    compare(save(OrderedDict(TENSORS)), TENSORS, tmp_path / "a.frec")
    compare(save({"train": {"x": TENSORS["x"]}}), {"train/x": TENSORS["x"]}, tmp_path / "a.frec")
    compare(save(TENSORS["x"]), {"data": TENSORS["x"]}, tmp_path / "a.frec")
    dataset = TensorDataset(TENSORS["x"], TENSORS["labels"])
    compare(save(dataset.tensors), {"0": TENSORS["x"], "1": TENSORS["labels"]}, tmp_path / "a.frec")
    compare(save(list(dataset.tensors)), {"0": TENSORS["x"], "1": TENSORS["labels"]}, tmp_path / "a.frec")
    odd = {"strided": torch.rand(4, COUNT).T, "part": torch.rand(COUNT * 3)[5 : 5 + COUNT]}
    compare(save(odd), odd, tmp_path / "a.frec")


def test_lists_and_other_values_beside_tensors(tmp_path: Path) -> None:
    names = [f"n{n}" for n in range(COUNT)]
    torch.save({"x": TENSORS["x"], "name": names, "note": "n", "mean": [0.5], "deep": {"a": 1}}, tmp_path / "a.pt")
    with opened(tmp_path / "a.pt") as source:
        assert [(field.name, field.type.name) for field in source.fields] == [("x", "array"), ("name", "string")]
        assert take(source, 3)["name"] == names[3:]
        assert source.metadata == {"note": "n", "mean": [0.5], "deep/a": 1}


def test_safetensors_come_as_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(TENSORS, path, {"made": "here"})
    assert registry.recognise(str(path))[0] is TORCH
    with opened(path) as source:
        assert {field.name: str(field.type) for field in source.fields} == TYPES
        assert source.metadata == {"made": "here"}
    compare(path, TENSORS, tmp_path / "a.frec")


def test_shards_and_lengths(tmp_path: Path) -> None:
    for number in range(2):
        torch.save({"x": torch.arange(3) + 10 * number}, tmp_path / f"{number}.pt")
    with opened(tmp_path) as source:
        assert take(source, 2)["x"] == [2, 10, 11, 12]
    torch.save({"x": torch.zeros(3, 2), "w": torch.zeros(2), "s": torch.tensor(1)}, tmp_path / "2.pt")
    with pytest.raises(fr.FastRecordError, match=r"different first lengths \(2: w; 3: x\): .*--set arrays=x"):
        opened(tmp_path / "2.pt")
    with opened(tmp_path / "2.pt", arrays="x") as source:
        assert source.count() == 3


def test_nothing_but_tensors_is_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (mark,)

    for number, value in enumerate([Evil(), {"x": Evil()}, TensorDataset(torch.arange(3)), [torch.arange(3), Evil()]]):
        for legacy in (False, True):
            path = tmp_path / f"{number}.pt"
            torch.save(value, path, _use_new_zipfile_serialization=not legacy)
            with pytest.raises(fr.FastRecordError, match=r"\d.pt: it holds something else than tensors.*\[FR756\]"):
                opened(path)
    assert not mark.exists()


def test_odd_tensors_are_refused(tmp_path: Path) -> None:
    cases = {
        "sparse": torch.eye(3).to_sparse(),
        "expand": torch.zeros(1).expand(1000),
        "torch.float8_e5m2": torch.zeros(3).to(torch.float8_e5m2),
        "holds no arrays": torch.tensor(3),
        "holds a str": "text",
        "a list of 1,001": [torch.zeros(2)] * 1001,
    }
    for why, value in cases.items():
        torch.save(value, tmp_path / "a.pt")
        with pytest.raises(fr.FastRecordError, match=f"a.pt: .*{why}"):
            opened(tmp_path / "a.pt")


@pytest.mark.parametrize("kind", ["pt", "legacy", "safetensors"])
def test_files_cut_short_are_errors(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path, _use_new_zipfile_serialization=kind == "pt")
    whole = path.read_bytes()
    for end in (0, 1, 5, 9, 20, 60, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(fr.FastRecordError, match=r"/a: .*\[FR75[26]\]"):
            opened(path)


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    for number, data in enumerate([b"", b"PK\x03\x04" + bytes(60), b"\xff" * 8 + b"{}", b"text and more text"]):
        (tmp_path / f"{number}").write_bytes(data)
        assert TORCH.recognise(Found.at(str(tmp_path / f"{number}"))) is None
