"""Commands without standard streams, and in locales that are not UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastrecord as fr
from tests.conftest import encode
from tests.support.packing import pack_with

# Runs each command line of a file in a forked child, as the command does; logs the exit statuses.
FORKS = """
import json, os, shlex, sys
import fastrecord.inspect.benchmark, fastrecord.inspect.diagnosis, fastrecord.files.extraction, fastrecord.packing.pack
from fastrecord.cli import main
statuses = {}
for line in json.load(open("commands.json")):
    child = os.fork()
    if child == 0:
        sys.argv = ["fastrecord", *(os.fsdecode(word.encode()) for word in shlex.split(line))]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code)
        os._exit(99)
    statuses[line] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with open("statuses.json", "w") as file:
    json.dump(statuses, file)
"""

# Every command with its exit status.
COMMANDS = {
    "pack src packed.frec": 0,
    "info a.frec": 0,
    "-vv ls a.frec": 0,
    "extract a.frec files": 0,
    "verify a.frec": 0,
    "verify damaged.frec": 1,
    "repair damaged.frec repaired.frec": 1,
    "merge a.frec a.frec -o merged.frec": 0,
    "split a.frec first.frec second.frec --shards 2": 0,
    "shuffle a.frec shuffled.frec": 0,
    "compact a.frec": 0,
    "doctor a.frec": 0,
    "bench a.frec --seconds 0.1 --field key": 0,
    "pack --help": 0,
    "info absent.frec": 1,
}
NAMES = ("katze", "猫", "été")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a class whose name is ASCII, and two whose names are not."""
    for number, name in enumerate(NAMES):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / f"{name}.jpg").write_bytes(encode(number))
    return tmp_path / "src"


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_every_command_does_its_work_without_standard_streams(source: Path, tmp_path: Path, closed: str) -> None:
    with fr.Writer(tmp_path / "a.frec", {"image": fr.image(), "key": fr.string()}) as writer:
        for number in range(4):
            writer.append({"image": encode(number), "key": f"{number}.jpg"})
    content = bytearray((tmp_path / "a.frec").read_bytes())
    content[content.index(encode(1)) + 50] ^= 1
    (tmp_path / "damaged.frec").write_bytes(content)
    (tmp_path / "commands.json").write_text(json.dumps(list(COMMANDS)))
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, FORKS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "statuses.json").read_text()) == COMMANDS
    assert b"Traceback" not in done.stdout + done.stderr
    sizes = {path.name: len(fr.Reader(path)) for path in tmp_path.glob("*.frec")}
    made = {"packed": 3, "merged": 8, "first": 2, "second": 2, "shuffled": 4, "repaired": 3, "a": 4, "damaged": 4}
    assert sizes == {f"{name}.frec": count for name, count in made.items()}
    assert all(fr.Reader(path).verify()["ok"] for path in tmp_path.glob("*.frec") if path.name != "damaged.frec")
    assert len(list((tmp_path / "files").iterdir())) == 4
    assert len(source.name) == 3


@pytest.fixture(params=["ascii", "latin-1"])
def locale(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a locale that is not UTF-8: Latin-1, or ASCII where it is missing."""
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    if request.param == "latin-1":
        place = tmp_path / "locales" / "en_US.ISO-8859-1"
        place.parent.mkdir()
        try:
            subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", place], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return plain
        return {"LOCPATH": str(place.parent), "LC_ALL": place.name, "PYTHONUTF8": "0"}
    return plain


def test_names_are_stored_as_utf8_in_every_locale_and_come_back(
    source: Path, tmp_path: Path, locale: dict[str, str]
) -> None:
    store = f"file://{tmp_path}/été/"
    lines = [
        "pack src a.frec", "pack src listed.frec --set list=list.csv", "pack src a.frec --resume",
        "info a.frec", "ls a.frec", "info listed.frec", "ls listed.frec", "verify a.frec",
        "extract a.frec out", "extract a.frec cats --class 猫",
        "select a.frec 猫.frec --where 'label == \"猫\"'",
        "browse 猫.frec --where 'label == \"猫\"' --class 猫 -o page.html",
        *2 * [f"copy 猫.frec {store}猫.frec", f"verify {store}猫.frec"],
        f"pack src {store} --shards 2 --append",
    ]  # fmt: skip
    (tmp_path / "list.csv").write_text("path,class\n" + "".join(f"{name}/{name}.jpg,{name}\n" for name in NAMES))
    (tmp_path / "commands.json").write_text(json.dumps(lines))
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ | locale, timeout=110)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads((tmp_path / "statuses.json").read_text()) == dict.fromkeys(lines, 0)
    told = done.stdout.decode("ascii" if locale["LC_ALL"] == "C" else "latin-1")
    assert sum(r"\u732b" in line for line in told.splitlines() if "classes" in line or ".jpg" in line) == 2 + 2
    for path in ("a.frec", "listed.frec"):
        with fr.Reader(tmp_path / path) as reader:
            assert reader.metadata["classes"] == sorted(NAMES)
            keys = reader.read_batch(range(3), ["key"])["key"]
            assert sorted(keys) == sorted(f"{name}/{name}.jpg" for name in NAMES)
    for name in NAMES:
        assert (tmp_path / "out" / name / f"{name}.jpg").read_bytes() == (source / name / f"{name}.jpg").read_bytes()
    assert [path.name for path in (tmp_path / "cats").iterdir()] == ["猫"]
    assert fr.Reader(tmp_path / "猫.frec").read_batch([0], ["key"])["key"] == ["猫/猫.jpg"]
    assert "猫.frec" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "été" / "猫.frec").read_bytes() == (tmp_path / "猫.frec").read_bytes()
    assert len(fr.FastRecordDataset(f"file://{tmp_path}/été/")) == 3


# Every use of a folder with such a name, twice.
USES = """
import os, pickle, shutil, sys
from urllib.parse import quote
import fastrecord as fr
assert sys.getfilesystemencoding() != "utf-8"
(base,) = (name for name in os.listdir() if not name.isascii())
one, out, folder, store = (os.path.join(base, name) for name in ("a.frec", "out.frec", "set", "store"))
url = "file://" + quote(os.fsencode(os.path.abspath(store)))
crop = [fr.transforms.CenterCrop(8)]
for again in range(2):
    for source in (one, folder, os.path.join(base, "*.frec")):
        data = fr.FastRecordDataset(source)
        assert len(data) == 3 and all(map(os.path.exists, data.paths))
        (repr(data), data._repr_html_(), data[0], pickle.loads(pickle.dumps(data))[1])
        fr.FastRecordDataset(data.snapshots).close()
        for batch in fr.FastRecordLoader(data, 2, sample=crop):
            pass
    fr.Reader(fr.Reader(one).path).refresh()
    assert all(map(str.isascii, os.listdir(folder))) == (again == 1), "made elsewhere at first"
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    fr.files.split(one, os.path.join(folder, "a.frec"), shards=2, overwrite=True)
    merge = lambda source, out, **options: fr.files.merge([source], out, **options)
    for make in (fr.files.shuffle, fr.files.select, fr.files.repair, merge):
        make(one, out, overwrite=True)
        os.path.exists(out) and os.unlink(out)
    fr.files.compact(one)
    (fr.files.write_manifest(folder), fr.files.check_manifest(folder))
    (fr.files.set_metadata(one, x=again), fr.files.index(one))
    (fr.inspect.stats([folder]), fr.inspect.doctor([one]))
    (fr.inspect.diff(one, folder), fr.inspect.bench(one, seconds=0.01))
    fr.inspect.browse(one, os.path.join(base, "page.html"), overwrite=True)
    fr.files.extract(one, os.path.join(base, "files"), overwrite=True)
    for format in ("webdataset", "parquet", "lmdb", "arrayrecord", "hdf5", "tfrecord", "mds", "numpy"):
        other = os.path.join(base, base + ("" if format == "mds" else ".tar"))
        fr.export(folder, other, format, overwrite=True)
        fr.pack(fr.Input(other, format=format), out, output=fr.Output(mode="overwrite"))
        assert len(fr.Reader(out)) == 3
        shutil.rmtree(other, ignore_errors=True)
    fr.export(folder, other, "folder")
    assert sorted(map(os.fsencode, os.listdir(other))) == sorted(name.encode() for name in data.classes)
    shutil.rmtree(other)
    fr.pack("src", out, output=fr.Output(mode="overwrite"))
    with fr.Writer(out, mode="a") as writer:
        assert os.path.exists(writer.path)
    os.unlink(out)
    fr.files.copy(folder, url, overwrite=True)
    fr.files.copy(url, os.path.join(base, "back"), overwrite=True)
    far = fr.FastRecordDataset(url, store=fr.Store(cache=os.path.join(base, "cache")))
    assert len([*fr.FastRecordLoader(far, 2, sample=crop)]) == 2
    far.close()
    for name, error in (("none.frec", FileNotFoundError), ("page.html", fr.errors.CorruptFileError)):
        wrong = os.path.join(base, name)
        try:
            fr.FastRecordDataset(wrong)
        except error as found:
            assert getattr(found, "filename", None) in (None, os.path.abspath(wrong)), found.filename
        else:
            raise AssertionError(wrong)
"""


def test_paths_that_the_locale_has_no_letters_for_lead_to_their_files(
    source: Path, tmp_path: Path, locale: dict[str, str]
) -> None:
    folder = tmp_path / "Größe 猫"
    (folder / "set").mkdir(parents=True)
    pack_with(source, folder / "a.frec")
    fr.files.split(folder / "a.frec", folder / "set" / "größe.frec", shards=2)
    command = [sys.executable, "-W", "error", "-c", USES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ | locale, timeout=110)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def test_output_escapes_what_the_terminal_cannot_show(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", {"label": "int64", "key": fr.string()}, metadata={"classes": ["猫"]}) as writer:
        writer.append({"label": 0, "key": "é猫\x1b[2J"})
    command = [sys.executable, "-m", "fastrecord", "ls", "a.frec"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("latin-1") == "0  0  \\u732b  é\\u732b\\x1b[2J\n"
