"""Keys that would be paths elsewhere, special files, and the permissions of outputs."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord.files.extraction import extract
from fastrecord.terminal import PrintableFormatter, printable
from tests.conftest import encode
from tests.files.test_extract import files_below, keyed
from tests.support.commands import failed, good, run
from tests.support.packing import keys, small_folder


@pytest.fixture
def umask() -> Iterator[None]:
    """Files readable by others, unless changed."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("../x.jpg", "is not a path inside a folder"),
        ("a//b.jpg", "is not a path inside a folder"),
        ("a/./b.jpg", "is not a path inside a folder"),
        ("", "is not a path inside a folder"),
        ("a/", "is not a path inside a folder"),
        ("a\0b", "is not a path inside a folder"),
        ("..\\..\\x.jpg", "is not a path inside a folder"),
        ("a\\../x.jpg", "is not a path inside a folder"),
        ("a/..\\x.jpg", "is not a path inside a folder"),
        ("/etc/passwd", "is not a path inside a folder"),
        ("a/" + "é" * 127 + ".jpg", "has a name of 258 bytes in it, where file systems take 255"),
        ("n" * 256, "has a name of 256 bytes in it, where file systems take 255"),
    ],
)
def test_a_key_that_leads_out_of_the_folder_is_refused_before_anything_is_written(
    tmp_path: Path, key: str, wrong: str
) -> None:
    path = keyed(tmp_path / "evil.frec", ["fine.jpg", key])
    message = failed("extract", path, tmp_path / "out")
    assert message.startswith(f"error: {path}: record 1: the key ")
    assert printable(wrong) in message
    assert message.endswith(": name the files by number (`--numbered`) [FR740]\n")
    assert set(files_below(tmp_path)) == {"evil.frec"}
    good("extract", path, tmp_path / "out", "--numbered")


@pytest.mark.parametrize(
    "key", ["a\nb.jpg", "-rf", " .jpg", "a b/c;d.jpg", "C:\\x.jpg", "...", "é/ß.jpg", "\x1b[31m.jpg", "n" * 255, "~/.x"]
)
def test_a_strange_key_that_is_a_path_below_the_folder_names_its_file(tmp_path: Path, key: str) -> None:
    path = keyed(tmp_path / "a.frec", [key])
    good("extract", path, tmp_path / "out")
    name = f"{key}.jpg" if key in ("-rf", "...", "~/.x") else key  # adds a missing suffix
    assert files_below(tmp_path / "out") == {name: encode(0)}


@pytest.mark.parametrize("order", [["a", "a/b.jpg"], ["a/b.jpg", "a"], ["a/b/c/d.jpg", "x.jpg", "a/b"]])
def test_a_key_that_is_a_folder_of_another_is_refused_before_anything_is_written(
    tmp_path: Path, order: list[str]
) -> None:
    path = keyed(tmp_path / "a.frec", order)
    message = failed("extract", path, tmp_path / "out")
    short = min(order, key=len) if "x.jpg" not in order else "a/b"
    assert f"the key {short!r} of record {order.index(short)} is a folder in the key of record" in message
    assert set(files_below(tmp_path)) == {"a.frec"}
    good("extract", path, tmp_path / "out", "--numbered")


def test_keys_that_a_file_system_takes_for_one_name_do_not_replace_each_other(tmp_path: Path) -> None:
    names = ["A.jpg", *(f"{i}.jpg" for i in range(63)), "a.jpg"]
    path = keyed(tmp_path / "a.frec", names)
    out = tmp_path / "out"

    def fold(done: int, total: int) -> None:
        # A file system that ignores case looks like this: the other name opens the same file.
        if done < total:
            os.link(out / "A.jpg", out / "a.jpg")

    with pytest.raises(fr.FastRecordError, match=r"takes it for 'A\.jpg', the key of another record"):
        extract(path, out, overwrite=True, progress=fold)
    assert (out / "a.jpg").read_bytes() == encode(0)
    # Files from before the run may be replaced, under either name.
    good("extract", path, out, "--overwrite")
    assert (out / "A.jpg").read_bytes() == encode(0)
    assert (out / "a.jpg").read_bytes() == encode(64)


@pytest.mark.usefixtures("umask")
def test_extracted_files_have_the_permissions_of_those_that_they_replace_or_what_the_umask_leaves(
    tmp_path: Path,
) -> None:
    path = keyed(tmp_path / "a.frec", ["new.jpg", "secret.jpg", "tool.jpg", "pipe.jpg"])
    out = tmp_path / "out"
    out.mkdir()
    for name, bits in (("secret.jpg", 0o600), ("tool.jpg", 0o6755)):
        (out / name).touch()
        (out / name).chmod(bits)
    os.mkfifo(out / "pipe.jpg", 0o600)
    good("extract", path, out, "--overwrite")
    assert {name: mode(out / name) for name in files_below(out)} == {
        "new.jpg": 0o644,
        "secret.jpg": 0o600,
        "tool.jpg": 0o755,
        "pipe.jpg": 0o644,
    }


def test_a_leftover_of_a_killed_extraction_is_in_nobodys_way(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.frec", ["a.jpg"])
    out = tmp_path / "out"
    out.mkdir()
    (out / ".fastrecord-a.jpg.tmp").touch()
    good("extract", path, out)
    assert files_below(out) == {"a.jpg": encode(0)}


@pytest.mark.usefixtures("umask")
def test_what_takes_the_place_of_a_private_file_stays_private(tmp_path: Path) -> None:
    source = small_folder(tmp_path / "images")
    path, part = tmp_path / "a.frec", tmp_path / "part.frec"
    good("pack", source, path)
    assert mode(path) == 0o644
    for bits, kept in ((0o640, 0o640), (0o4755, 0o755)):
        for command in (
            ("pack", source, path, "--overwrite"),
            ("merge", part, part, "-o", path, "--overwrite"),
            ("shuffle", part, path, "--overwrite"),
            ("split", part, path, tmp_path / "rest.frec", "--fractions", "0.6,0.4", "--overwrite"),
            ("compact", part, "-o", path, "--overwrite"),
            ("compact", path),
        ):
            good("pack", source, part, "--overwrite")
            path.chmod(bits)
            result = run(*command)
            assert result.exit_code == 0, result.output
            assert mode(path) == kept, command
    assert mode(part) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_root_writes_anew_stays_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    good("pack", small_folder(tmp_path / "images"), path)
    path.chmod(0o600)
    os.chown(path, 1234, 4321)
    good("compact", path)
    status = path.stat()
    assert (status.st_uid, status.st_gid, mode(path)) == (1234, 4321, 0o600)


@pytest.mark.parametrize("place", ["image.jpg", "folder"])
def test_a_pipe_or_a_socket_among_the_images_is_named_and_nothing_waits_for_it(tmp_path: Path, place: str) -> None:
    source = small_folder(tmp_path / "images")
    os.mkfifo(source / "ant" / place)
    message = failed("pack", source, tmp_path / "a.frec")
    assert message.startswith(f"error: {source}/ant/{place}: not a regular file")
    good("pack", source, tmp_path / "a.frec", "--bad-files", "skip")
    assert keys(tmp_path / "a.frec") == ["ant/0.jpg", "ant/1.jpg", "bee/0.jpg", "bee/1.jpg", "bee/2.jpg"]


def test_a_device_that_a_link_leads_to_is_not_read(tmp_path: Path) -> None:
    source = small_folder(tmp_path / "images")
    (source / "ant" / "zero.jpg").symlink_to("/dev/zero")
    assert "not a regular file" in failed("pack", source, tmp_path / "a.frec")


@pytest.mark.parametrize("command", [["info"], ["ls"], ["verify"], ["doctor"], ["compact"]])
def test_a_pipe_in_the_place_of_a_file_is_an_error_at_once(tmp_path: Path, command: list[str]) -> None:
    os.mkfifo(tmp_path / "a.frec")
    result = run(*command, tmp_path / "a.frec")
    assert result.exit_code == 1
    assert "not a regular file" in result.output


def test_a_name_made_up_by_a_file_does_not_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b]0;owned\x07.frec"
    message = failed("info", path)
    assert message.startswith(f"error: {tmp_path}/\\x1b]0;owned\\x07.frec: ")
    schema = fr.Schema({"im\x1b[2Jage": fr.image(), "other": fr.image()})
    fr.Writer(tmp_path / "a.frec", schema).close()
    for arguments in (["info"], ["ls"], ["extract"]):
        result = run(*arguments, tmp_path / "a.frec", *([tmp_path / "out"] if arguments == ["extract"] else []))
        assert "\x1b" not in result.output


def test_printable_leaves_what_can_be_read_and_escapes_the_rest() -> None:
    assert printable("é ß\\n 日本") == "é ß\\n 日本"
    assert printable("é\n\x1b[0m\u202e\udce9") == "é\\n\\x1b[0m\\u202e\\udce9"


def test_an_extraction_that_is_killed_leaves_whole_files_and_one_named_leftover_at_most(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.frec", [f"{i}.jpg" for i in range(200)])
    program = (
        "import os, signal, sys\n"
        "from fastrecord.files.extraction import extract\n"
        "extract(sys.argv[1], sys.argv[2], progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path, tmp_path / "out"], check=False, timeout=100)
    assert done.returncode == -9
    found = files_below(tmp_path / "out")
    whole = {f"{i}.jpg": encode(i) for i in range(200)}
    assert {name: data for name, data in found.items() if not name.startswith(".fastrecord-")}.items() <= whole.items()
    assert sum(name.startswith(".fastrecord-") for name in found) <= 1


def test_names_in_a_folder_steer_no_terminal_by_what_a_pack_prints_or_logs(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c\x1b[31mls"
    folder.mkdir(parents=True)
    (folder / "good.jpg").write_bytes(encode(0))
    (folder / "bad\n\x1b]0;x\a.jpg").write_bytes(b"text")
    (tmp_path / "src" / "empty\x1b[2J").mkdir()
    out = tmp_path / "out.frec"
    result = run("-v", "pack", tmp_path / "src", out, "--bad-files", "skip", "--set", "allow_empty_classes=yes")
    name = "c\\x1b[31mls/bad\\n\\x1b]0;x\\x07.jpg"
    assert f"\n  {name}: not an image" in result.stdout
    assert "\nclasses without a record: empty\\x1b[2J\n" in result.stdout
    assert f"WARNING fastrecord.pack: skipped: {name}: not an image" in result.stderr
    told = [result.output, run("info", out).output, run("ls", out).output]
    told.append(failed("pack", tmp_path / "src", tmp_path / "b.frec", "--set", "allow_empty_classes=yes"))
    assert all(line.isprintable() for text in told for line in text.split("\n"))


def test_a_log_line_is_one_line_and_of_a_traceback_each_line_stays_one() -> None:
    try:
        raise ValueError("evil\x1b[2J\nname")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("fastrecord", logging.INFO, "", 0, "a\n%s", ("\x1b[31m",), error)
    lines = PrintableFormatter("%(levelname)s: %(message)s").format(record).split("\n")
    assert lines[0] == "INFO: a\\n\\x1b[31m"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: evil\\x1b[2J", "name"]
