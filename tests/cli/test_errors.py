"""Error codes: every code is documented, every message has one, and workers keep it."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import fastrecord as fr
from fastrecord import _core
from fastrecord.errors import Code, code_of
from tests.conftest import write_bytes, write_images
from tests.support.commands import failed, run

ROOT = Path(__file__).parents[2]
NAMED = {name for name, kind in vars(_core).items() if isinstance(kind, type) and issubclass(kind, fr.FastRecordError)}
MODULES = sorted((ROOT / "python" / "fastrecord").rglob("*.py"))
BAD_PAYLOADS = [b"a" * 3000, b"b" * 3000]


def codes_used() -> set[str]:
    """Return the codes that the core, the binding and the package raise."""
    rust = ROOT / "rust"
    sources = [rust / "core" / "src" / "error" / "code.rs", *(rust / "python" / "src").rglob("*.rs")]
    # Skip examples in comments and docstrings.
    text = "\n".join(re.sub(r"//.*", "", path.read_text().split("#[cfg(test)]")[0]) for path in sources)
    return set(re.findall(r"FR\d{3}", text)) | set(Code)


def corrupt(path: Path) -> Path:
    """Write two records, the second one damaged."""
    content = bytearray(write_bytes(path, BAD_PAYLOADS).read_bytes())
    content[content.index(BAD_PAYLOADS[1]) + 5] ^= 1
    path.write_bytes(content)
    return path


def test_the_page_says_what_every_code_that_is_raised_means() -> None:
    rows = re.findall(
        r"^\| (FR\d{3}) \| (.*?) \| .+ \| .+ \|$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE
    )
    assert [code for code, _ in rows] == sorted(codes_used())
    kinds = dict(rows)
    assert [code for code in Code if f"`{code.kind.__name__}`" not in kinds[code]] == []
    named = {name for path in MODULES for name in re.findall(r"\bCode\.([A-Z_0-9]+)", path.read_text())}
    assert named == {code.name for code in Code}


def test_every_error_that_is_raised_takes_its_code_and_class_from_the_table() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMED:
                assert path.name == "errors.py", f"{path}:{node.lineno}"
    assert isinstance(Code.NO_CLASSES.error("none"), fr.errors.SchemaError)
    assert str(Code.NO_CLASSES.error("none")) == "none [FR420]"


def test_an_error_says_its_code_and_keeps_it_in_copies_and_pickles(tmp_path: Path) -> None:
    with fr.Reader(corrupt(tmp_path / "a.frec")) as reader:
        with pytest.raises(fr.errors.CorruptFileError, match=r"the payload is damaged \[FR302\]$") as caught:
            reader.get(1, "data", verify=True)
        assert caught.value.code == "FR302"
        for other in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
            assert (type(other), other.code) == (fr.errors.CorruptFileError, "FR302")
        with pytest.raises(IndexError, match=r"the file has 2 records$") as plain_error:
            reader[2]
        assert plain_error.value.code == "FR801"  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError) as missing:
        fr.Reader(tmp_path / "none.frec")
    assert "FR" not in str(missing.value)
    assert missing.value.code == "FR101"  # type: ignore[attr-defined]


def test_errors_of_users_have_no_code() -> None:
    assert fr.FastRecordError("mine").code is None
    assert fr.errors.SchemaError().code is None
    assert fr.errors.SchemaError("FR302 [FR3020] [FR302] and so on").code is None


def test_an_error_has_its_place_and_its_way_out_as_values(tmp_path: Path) -> None:
    with fr.Reader(corrupt(tmp_path / "a.frec")) as reader, pytest.raises(fr.errors.CorruptFileError) as caught:
        reader.get(1, "data", verify=True)
    error = caught.value
    assert (error.path, error.record, error.field, error.way_out) == (reader.path, 1, "data", None)
    assert error.text.startswith("stored CRC")
    assert str(error) == f"{reader.path}: record 1, field data: {error.text} [FR302]"
    error.key, error.way_out = "b", "copy it again"
    assert str(error) == f"{reader.path}: record 1, key 'b', field data: {error.text}: copy it again [FR302]"
    (tmp_path / "b.frec").write_bytes(b"text" * 2000)
    with pytest.raises(fr.errors.CorruptFileError) as whole:
        fr.Reader(tmp_path / "b.frec")
    assert (whole.value.path, whole.value.record) == (str(tmp_path / "b.frec"), None)
    assert whole.value.text.startswith("not a .frec file")


def test_an_error_of_its_message_alone_has_the_code_of_its_last_line_with_one() -> None:
    error = fr.errors.DecodeError("a [FR101].frec: no image [FR501]")
    assert (error.text, error.code) == ("a [FR101].frec: no image", "FR501")
    assert str(error) == "a [FR101].frec: no image [FR501]"
    assert code_of("one [FR301]\n  two [FR302]\nthree\n") == "FR302"
    assert code_of("[FR30] FR301 [FR3010] [FRabc]") is None


def test_the_code_survives_the_way_out_of_a_worker(tmp_path: Path) -> None:
    dataset = fr.FastRecordDataset(corrupt(tmp_path / "a.frec"), fields=("data",), verify=True)
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="fork", collate_fn=list)
    with pytest.raises(fr.errors.CorruptFileError, match="Caught CorruptFileError in DataLoader worker") as caught:
        list(loader)
    assert caught.value.code == "FR302"


def test_errors_of_the_loader_name_the_key(tmp_path: Path) -> None:
    content = bytearray(write_images(tmp_path / "a.frec", [0, 1, 0, 1]).read_bytes())
    with fr.Reader(tmp_path / "a.frec") as reader:
        at = content.index(bytes(reader[1]["image"]))
    content[at : at + 4] = b"text"
    (tmp_path / "a.frec").write_bytes(content)
    dataset, unchecked = (fr.FastRecordDataset(tmp_path / "a.frec", verify=verify) for verify in (True, False))
    sample = [fr.transforms.Resize(16), fr.transforms.CenterCrop(16)]
    with pytest.raises(fr.errors.CorruptFileError, match=r"record 1, key 'a/1', field image: .*\[FR302\]$") as caught:
        list(fr.FastRecordLoader(dataset, batch_size=4, shuffle=False, sample=sample))
    assert caught.value.code == "FR302"
    with pytest.raises(fr.errors.DecodeError, match=r"record 1, key 'a/1', field image: .*\[FR501\]$"):
        list(fr.FastRecordLoader(unchecked, batch_size=4, shuffle=False, sample=sample))
    loader = fr.FastRecordLoader(dataset, batch_size=4, shuffle=False, sample=sample, on_error="skip")
    assert [len(labels) for _, labels in loader] == [3]
    assert [code_of(record.reason) for record in loader.skipped] == ["FR302"]
    assert torch.tensor(loader.dataset.targets).tolist() == [0, 1, 0, 1]


def test_the_command_line_prints_codes_and_lists_them_in_json(tmp_path: Path) -> None:
    path = corrupt(tmp_path / "a.frec")
    (tmp_path / "b.frec").write_bytes(b"text" * 2000)
    shown = run("verify", path, tmp_path / "b.frec", tmp_path / "none.frec", "--json", "--quiet")
    reports = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [report["codes"] for report in reports] == [["FR302"], ["FR201"], [None]]
    assert reports[0]["errors"][0].endswith("the payload is damaged [FR302]")
    assert failed("info", tmp_path / "b.frec").endswith("[FR201]\n")
