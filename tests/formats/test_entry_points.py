"""A package of its own adds a format by the entry point group, and the command line uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.commands import failed
from tests.support.formats.own_format import install
from tests.support.rewriting import rows, write_rows


def command(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `fastrecord` in a process that finds the packages in `site`."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-W", "error", "-m", "fastrecord", *map(str, arguments)]
    return subprocess.run(line, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)


def entry(site: Path, name: str, target: str, module: str = "") -> None:
    """Install a package with one entry."""
    about = site / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[fastrecord.formats]\n{name} = {target}\n")
    if module:
        (site / f"{target.partition(':')[0]}.py").write_text(module)


def test_the_package_of_the_docs_exports_and_imports_by_the_command_line(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    path = write_rows(tmp_path / "in.frec", 30, classes=["a", "b"], note=7)
    done = command(site, "export", path, tmp_path / "out.jsonl", "--format", "jsonlines")
    assert (done.returncode, done.stderr) == (0, "")
    back = tmp_path / "back.frec"
    done = command(site, "import", tmp_path / "out.jsonl", back)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(back) == rows(path)
    with fr.Reader(path) as before, fr.Reader(back) as after:
        assert before.schema == after.schema
        assert before.metadata.items() <= after.metadata.items()
    done = command(site, "import", tmp_path / "out.jsonl", "--dry-run")
    assert done.stdout.startswith("format: jsonlines (it begins with a card of fastrecord)\n")


@pytest.mark.usefixtures("jsonlines")
def test_its_source_reads_from_any_position_and_names_bad_records(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "in.frec", 30), tmp_path / "out.jsonl"
    fr.export(path, out, "jsonlines")
    lines = out.read_bytes().splitlines(keepends=True)
    lines[13] = b"{}\n"
    out.write_bytes(b"".join(lines))
    kind, why = registry.recognise(str(out))
    assert (kind.name, why) == ("jsonlines", "it begins with a card of fastrecord")
    with kind.open(str(out), {}) as source:
        names = [field.name for field in source.fields]
        (run,) = source.read(10, names)
    assert (run.start, run.count, list(run.numbers)) == (10, 20, [10, 11, *range(13, 30)])
    assert run.bad == {12: "not a JSON object with the fields of the first line: KeyError('data')"}
    found = list(zip(*(run.columns[name] for name in names), strict=True))
    assert found == [row for number, row in enumerate(rows(path)) if number in run.numbers]


@pytest.mark.parametrize(
    ("name", "module", "extra", "head"),
    [
        ("hdf5", "h5py", "hdf5", b""),
        ("parquet", "pyarrow", "parquet", b"PAR1"),
        ("arrayrecord", "array_record.python.array_record_module", "arrayrecord", b""),
        ("torch", "safetensors", "safetensors", b"\2" + bytes(7) + b"{}"),
        ("zarr", "zarr", "zarr", b""),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str, head: bytes
) -> None:
    (tmp_path / "source").write_bytes(head)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fr.FastRecordError, match=rf"needs the package \w+: .*pip install 'fastrecord\[{extra}\]'"):
        registry.load(name).open(str(tmp_path / "source"), {})


def test_a_package_that_is_broken_is_named(tmp_path: Path, jsonlines: Path) -> None:
    entry(jsonlines, "crash", "crash_module:FORMAT", "import no_such_module")
    entry(jsonlines, "other", "json:dumps")
    path = write_rows(tmp_path / "in.frec", 3)
    message = failed("export", path, tmp_path / "out", "-f", "crash")
    assert "the format 'crash' of the package crash cannot be imported: ModuleNotFoundError" in message
    message = failed("export", path, tmp_path / "out", "-f", "other")
    assert "the entry point 'other' of the package other is not an instance of fastrecord.interchange.Format" in message


def test_a_package_that_is_broken_does_not_spoil_the_others(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    entry(site, "crash", "crash_module:FORMAT", "import no_such_module")
    path = write_rows(tmp_path / "in.frec", 3)
    assert command(site, "export", path, tmp_path / "out.jsonl", "--format", "jsonlines").returncode == 0
    for out in ("a.frec", "b.frec"):
        done = command(site, "import", tmp_path / "out.jsonl", tmp_path / out)
        assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "unknown").write_bytes(b"nothing known")
    done = command(site, "import", tmp_path / "unknown", tmp_path / "c.frec")
    assert "of no known format" in done.stderr
    assert "the format 'crash' of the package crash cannot be imported: ModuleNotFoundError" in done.stderr
    done = command(site, "export", path, tmp_path / "x", "--format", "nothing")
    assert "no format is called 'nothing': the formats are" in done.stderr
