"""The command line: its output, its refusals and its exit status."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import fastrecord as fr
from fastrecord.cli import cli
from fastrecord.errors import code_of
from scripts.cli_options import with_tables
from tests.conftest import encode, folder_records
from tests.support import programs
from tests.support.commands import failed, flip, good, run

COMMANDS = cli.list_commands(click.Context(cli))


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastrecord", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


# The command itself


def test_the_overview_names_every_command() -> None:
    text = good("--help")
    assert [line.split()[0] for line in text.split("Commands:")[1].splitlines() if line.strip()] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_each_of_its_options(command: str) -> None:
    text = good(command, "--help")
    assert f"Usage: fastrecord {command}" in text
    assert good(command, "-h") == text
    loaded = cli.get_command(None, command)  # type: ignore[arg-type] # the context plays no part in it
    assert loaded is not None
    assert loaded.name == command
    assert all(option.help for option in loaded.params if isinstance(option, click.Option))


def test_help_packing_a_folder_and_merging_load_neither_torch_nor_numpy(tmp_path: Path) -> None:
    (tmp_path / "in" / "class").mkdir(parents=True)
    (tmp_path / "in" / "class" / "a.jpg").write_bytes(encode(1))
    code = (
        "import sys, fastrecord.cli as c\n"
        "helps = [[*command, '--help'] for command in ([], ['pack'], ['verify'], ['merge'])]\n"
        "for command in (*helps, ['pack', 'in', 'a.frec'], ['merge', 'a.frec', 'a.frec', 'b.frec']):\n"
        "    sys.argv[1:] = command\n"
        "    try: c.main()\n"
        "    except SystemExit as e: assert not e.code\n"
        "    heavy = {'torch', 'numpy', 'tqdm', *(['fastrecord.packing.pack'] if command in helps else [])}\n"
        "    assert not heavy & set(sys.modules), command\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)


def test_the_version_is_the_packages() -> None:
    assert good("--version") == f"fastrecord {fr.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["unpack"], ["pack"], ["info"], ["verify"], ["ls", "a", "b"], ["pack", "a", "b", "--x"]]
)
def test_wrong_usage_has_exit_status_2(arguments: list[str]) -> None:
    assert "Usage: fastrecord" in failed(*arguments, status=2)


@pytest.mark.parametrize(
    "arguments",
    [["info", "gone.frec"], ["ls", "gone.frec"], ["extract", "gone.frec", "out"], ["pack", "gone", "o.frec"]],
)
def test_a_missing_file_is_one_line_with_its_name(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failed(*arguments) == f"error: {arguments[1]}: No such file or directory\n"
    assert os.listdir(tmp_path) == []


def test_python_m_fastrecord_is_the_command(packed: Path) -> None:
    child = process("info", packed)
    assert (child.returncode, child.stdout, child.stderr) == (0, good("info", packed), "")


def test_a_closed_pipe_ends_a_listing_quietly(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "long.frec", fr.Schema({"key": fr.string()})) as writer:
        for i in range(9000):
            writer.append({"key": f"{i:050d}"})
    command = [sys.executable, "-m", "fastrecord", "ls", str(tmp_path / "long.frec")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == f"   0  {0:050d}\n"
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(60) == 1


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [(["pack", "{src}", "{out}"], ""), (["ls", "{packed}"], "1"), (["ls", "{packed}"], ""), (["--help"], "")],
)
def test_a_full_standard_output_is_named_as_what_could_not_be_written(
    command: list[str], unbuffered: str, image_folder: Path, packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.frec"
    arguments = [part.format(src=image_folder, out=out, packed=packed) for part in command]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fastrecord", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    message = "error: standard output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, message)
    assert out.exists() == (command[0] == "pack")


def test_the_commands_of_the_documentation_run_in_their_order(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = [line for line in text.split("```sh\n")[1].split("```")[0].splitlines() if line]
    assert {line.split()[1] for line in commands} == set(COMMANDS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split).symlink_to(image_folder)
    for line in commands:
        # A folder stands for the bucket: tests/store has a server.
        program, *arguments = shlex.split(line.replace("s3://bucket", f"file://{tmp_path}/bucket"))
        assert program == "fastrecord"
        programs.command(line, *arguments)
    assert len(list((tmp_path / "some").rglob("*.jpg"))) == 3


# pack


def test_pack_json_is_the_summary(image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "cat").symlink_to(image_folder / "cat")
    (tmp_path / "src" / "dog").mkdir()
    (tmp_path / "src" / "dog" / "1.txt").write_text("woof", encoding="utf-8")
    (tmp_path / "src" / "README").touch()
    summary = json.loads(good("pack", tmp_path / "src", tmp_path / "out.frec", "--bad-files", "skip", "--json"))
    assert summary.pop("seconds") > 0
    assert summary.pop("written") > 0
    assert summary.pop("skipped")[0]["key"] == "dog/1.txt"
    assert summary == {
        "paths": [str(tmp_path / "out.frec")],
        "records": 5,
        "packed": 5,
        "bytes": (tmp_path / "out.frec").stat().st_size,
        "classes": ["cat", "dog"],
        "empty_classes": ["dog"],
        "ignored": 1,
        "recoded": None,
        "foreign": {},
        "scale": None,
        "format": "folder",
        "recognised": None,
        "manifest": None,
        "not_named": None,
        "left_out": [],
    }


def test_pack_lists_what_it_skipped_and_what_it_left_out(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/1.txt", "b/2.txt"):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(1) if name.endswith("jpg") else b"text")
    (tmp_path / "src" / "README").touch()
    text = good("pack", tmp_path / "src", "-o", tmp_path / "out.frec", "--bad-files", "skip")
    first, *rest = text.splitlines()
    assert ": 1 records in 2 classes, " in first
    assert rest[0] == "skipped 2 bad records:"
    assert rest[1].startswith("  a/1.txt: not an image")
    assert rest[2].startswith("  b/2.txt: not an image")
    assert rest[3:] == ["classes without a record: b", "left out 1 files beside the class folders"]


def test_pack_stops_at_a_bad_file_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.txt").write_text("text", encoding="utf-8")
    lines = failed("pack", tmp_path / "src", tmp_path / "out.frec").splitlines()
    assert lines[0].startswith(f"error: {tmp_path / 'src/a/1.txt'}: not an image")
    assert "--bad-files skip" in lines[0]
    assert lines[1] == f"{tmp_path / 'out.frec'}: nothing was committed, and no file is left"


def test_pack_modes_do_what_their_options_say(image_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    assert "12 records" in good("pack", image_folder, out, "--resume")
    assert "exists already: `--resume`" in failed("pack", image_folder, out)
    assert good("pack", image_folder, out, "--resume") == f"{out}: complete already, 12 records in 3 classes\n"
    assert "is in the file already" in failed("pack", image_folder, out, "--append")
    (tmp_path / "more" / "fox").mkdir(parents=True)
    (tmp_path / "more" / "fox" / "1.jpg").write_bytes(encode(1))
    assert ": 13 records (1 of them new) in 4 classes, " in good("pack", tmp_path / "more", out, "--append")
    assert ": 1 records in 1 classes, " in good("pack", tmp_path / "more", out, "--overwrite")


def test_pack_options_reach_the_packer(image_folder: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("dog/0.jpg,dog\ncat/1.jpg,cat\n", encoding="utf-8")
    good("pack", image_folder, tmp_path / "a.frec", "--set", f"list={tmp_path}/list.csv", "--classes-from", packed)
    with fr.Reader(tmp_path / "a.frec") as reader:
        assert reader.column("label").tolist() == [1, 0]
        assert reader.metadata["classes"] == ["cat", "dog", "owl"]
    text = good("pack", image_folder, tmp_path / "b.frec", "--shards", 3)
    assert f"{tmp_path / 'b-00000-of-00003.frec'} to {tmp_path / 'b-00002-of-00003.frec'}: 12 records" in text
    good("pack", image_folder, tmp_path / "c.frec", "--shard-size", "70KiB")
    assert len(list(tmp_path.glob("c-*-of-*.frec"))) > 1


@pytest.mark.parametrize(
    "options",
    [
        ["--append", "--resume"],
        ["--overwrite", "--resume"],
        ["--shards", "2", "--shard-size", "1GB"],
        ["--append", "--shards", "2"],
        ["--append", "--classes-from", "x.frec"],
        ["--set", "list=x.csv,allow_empty_classes=yes"],
        ["--shards", "0"],
        ["--shard-size", "4XB"],
        ["--shard-size", "0"],
        ["--shard-size", "big"],
        ["--bad-files", "maybe"],
    ],
)
def test_pack_options_that_make_no_sense_are_wrong_usage(
    image_folder: Path, tmp_path: Path, options: list[str]
) -> None:
    assert "Error: " in failed("pack", image_folder, tmp_path / "out.frec", *options, status=2)
    assert os.listdir(tmp_path) == []


INTERRUPTED = """
import signal, sys
import fastrecord.cli, fastrecord.packing.packer

class Progress(fastrecord.packing.packer.PackProgress):
    def __init__(self, files, total, bytes):
        if files:
            signal.raise_signal(signal.SIGINT)

fastrecord.packing.packer.PackProgress = Progress
fastrecord.cli.main()
"""


def test_ctrl_c_during_pack_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    for i in range(70):
        (tmp_path / "src" / "a" / f"{i:02d}.jpg").write_bytes(encode(0))
    out = tmp_path / "out.frec"
    command = [sys.executable, "-c", INTERRUPTED, "pack", str(tmp_path / "src"), str(out)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (child.returncode, child.stdout) == (130, "")
    assert child.stderr == f"interrupted: {out}: 64 records are committed: `--resume` continues from there\n"
    assert "complete  no: `fastrecord pack --resume` finishes it" in good("info", out)
    assert "70 records (6 of them new)" in good("pack", tmp_path / "src", out, "--resume")
    assert "complete  yes" in good("info", out)


# info


def test_info_json_has_the_documented_keys(packed: Path) -> None:
    about = json.loads(good("info", packed, "--json"))
    with fr.Reader(packed) as reader:
        assert about == {
            "file": str(packed),
            "records": 12,
            "bytes": packed.stat().st_size,
            "fields": {"image": "image", "label": "int64", "key": "string"},
            "compression": {},
            "crops": {"image": {"sampled": 12, "crop_index": 0, "packed": 0}},
            "commits": reader.commit,
            "classes": ["cat", "dog", "owl"],
            "version": 1,
            "complete": True,
            "file_id": reader.file_id,
            "tail_bytes": 0,
            "metadata": {},
        }

    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    table = text.split("## info FILE...")[1].split("\nA data set ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(about)


def test_info_is_for_people_too(packed: Path) -> None:
    lines = [line.split(maxsplit=1) for line in good("info", packed).splitlines()[1:]]
    about = {row[0]: row[1] for row in lines}
    assert about["records"] == "12"
    assert about["bytes"].startswith(f"{packed.stat().st_size:,} (")
    assert about["fields"] == "image (image), label (int64), key (string)"
    assert about["classes"] == "3: cat, dog, owl"
    assert about["complete"] == "yes"


def test_info_of_several_files_goes_on_after_a_bad_one(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.frec").write_bytes(b"no frec at all")
    result = run("info", "--json", packed, tmp_path / "bad.frec", packed)
    assert result.exit_code == 1
    assert [json.loads(line)["records"] for line in result.stdout.splitlines()] == [12, 12]
    assert result.stderr.startswith(f"error: {tmp_path / 'bad.frec'}: not a .frec file")


def test_info_tells_of_a_torn_tail(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.frec").write_bytes(packed.read_bytes() + b"\0" * 5000)
    assert "tail      5,000 bytes after the last commit" in good("info", tmp_path / "torn.frec")
    # It is not damage.
    assert "5,000 bytes after the last commit" in good("verify", tmp_path / "torn.frec")


# ls


def test_ls_json_has_a_row_for_each_record(image_folder: Path, packed: Path) -> None:
    rows = [json.loads(line) for line in good("ls", packed, "--json").splitlines()]
    for i, (row, (data, label, key)) in enumerate(zip(rows, folder_records(image_folder), strict=True)):
        assert row.pop("image")["bytes"] == len(data)
        assert row == {"record": i, "label": label, "class": ["cat", "dog", "owl"][label], "key": key}


def test_ls_shows_one_line_a_record(image_folder: Path, packed: Path) -> None:
    lines = good("ls", packed).splitlines()
    for i, (line, (data, label, key)) in enumerate(zip(lines, folder_records(image_folder), strict=True)):
        number, size, pixels, *rest = line.split()
        assert (number, size, rest) == (str(i), f"{len(data):,}", [str(label), key.split("/")[0], key])
        with fr.Reader(packed) as reader:
            assert pixels == f"{reader.column('image.width')[i]}x{reader.column('image.height')[i]}"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--limit", "3"], [0, 1, 2]),
        (["--offset", "10"], [10, 11]),
        (["--offset", "3", "--limit", "2"], [3, 4]),
        (["--limit", "0"], []),
        (["--offset", "12"], []),
        (["--offset", "10", "--limit", "99"], [10, 11]),
    ],
)
def test_ls_lists_the_records_asked_for(packed: Path, options: list[str], numbers: list[int]) -> None:
    assert [json.loads(line)["record"] for line in good("ls", packed, "--json", *options).splitlines()] == numbers


def test_info_and_ls_show_every_type(tmp_path: Path) -> None:
    schema = {
        "lr": fr.array("uint8", (32, 32, 3)),
        "mel": fr.array("float32", (None, 80)),
        "tags": fr.list_(fr.string()),
        "meta": fr.json(),
        "half": fr.FieldType("bfloat16"),
        "z": fr.FieldType("complex64"),
        "flag": fr.FieldType("bool"),
    }
    mel = np.zeros((7, 80), np.float32)
    record = {"lr": np.zeros((32, 32, 3), np.uint8), "mel": mel, "tags": ["a", "b"], "meta": {"a": [1, None]}}
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        writer.append({**record, "half": 1.5, "z": 1 - 2j, "flag": True})
    text = good("info", tmp_path / "a.frec")
    assert "lr (array(uint8, (32, 32, 3))), mel (array(float32, (None, 80))), tags (list(string)), meta (json)" in text
    fields = json.loads(good("info", "--json", tmp_path / "a.frec"))["fields"]
    assert fields["lr"] == "array(uint8, (32, 32, 3))"
    assert fields["half"] == "bfloat16"
    row = json.loads(good("ls", "--json", tmp_path / "a.frec"))
    assert row == {
        "record": 0,
        "lr": {"bytes": 3072},
        "mel": {"bytes": 2240},
        "tags": {"bytes": 8 + 2 * 8 + 8 + 1},
        "meta": {"a": [1, None]},
        "half": 1.5,
        "z": [1.0, -2.0],
        "flag": True,
    }
    assert good("ls", tmp_path / "a.frec").split() == [
        "0", "3,072", "2,240", "33", '{"a":', "[1,", "null]}", "1.5", "[1.0,", "-2.0]", "True"
    ]  # fmt: skip
    assert "no field 'tags' of type image, bytes, string, json or array" in failed(
        "extract", "--field", "tags", tmp_path / "a.frec", tmp_path / "x"
    )
    assert good("verify", tmp_path / "a.frec")


# verify


def test_verify_of_a_good_file_has_exit_status_0(packed: Path) -> None:
    assert good("verify", packed).startswith(f"{packed}: good: 12 records, ")
    result = json.loads(good("verify", packed, "--json"))
    assert result.pop("bytes") > 0
    images = {"damaged": [], "decoded": 0, "undecoded": 0}
    assert (
        result == {"file": str(packed), "ok": True, "records": 12, "errors": [], "codes": [], "tail_bytes": 0} | images
    )


def test_verify_names_the_damaged_record_and_has_exit_status_1(packed: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.frec"
    flip(packed, path, record=6)
    result = run("verify", packed, path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}: record 6, field image: stored CRC")
    assert result.stderr.endswith(" [FR302]\n")
    assert " (key " in result.stderr
    assert code_of(result.stderr) == "FR302"
    assert result.stdout.splitlines()[1] == f"{path}: damaged: 1 error"
    first, second = (json.loads(line) for line in run("verify", "--json", packed, path).stdout.splitlines())
    assert (first["ok"], second["ok"], len(second["errors"])) == (True, False, 1)


def test_verify_does_not_call_an_unreadable_path_damaged(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "text.frec").write_bytes(b"no frec at all")
    (tmp_path / "empty").mkdir()
    result = run("verify", tmp_path / "gone.frec", tmp_path / "empty", "/dev/null", tmp_path / "text.frec", packed)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:4] == [
        f"{tmp_path / 'gone.frec'}: cannot be read",
        f"{tmp_path / 'empty'}: cannot be read",
        "/dev/null: cannot be read",
        f"{tmp_path / 'text.frec'}: damaged: 1 error",
    ]
    assert len(result.stderr.splitlines()) == 4
    assert "not a .frec file" in result.stderr
    assert f"{tmp_path / 'gone.frec'}: No such file or directory" in result.stderr
    assert f"{packed}: good" in result.stdout
    assert json.loads(run("verify", "--json", tmp_path / "text.frec").stdout)["ok"] is False
    report = json.loads(run("verify", "--json", tmp_path / "gone.frec").stdout)
    assert set(report) == set(json.loads(good("verify", "--json", packed)))
    assert (report["ok"], len(report["errors"])) == (False, 1)


@pytest.fixture
def secret(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An unreadable file beside `open.frec`. Root reads anything, so it becomes another user."""
    for name in ("open.frec", "secret.frec"):
        (tmp_path / name).write_bytes(packed.read_bytes())
    tmp_path.chmod(0o755)
    (tmp_path / "secret.frec").chmod(0)
    monkeypatch.chdir(tmp_path)  # only root can enter the parents of this folder
    # Only root may find the modules that commands import later.
    for command in ("verify", "doctor", "info", "ls", "bench", "extract", "repair", "compact"):
        more = {"bench": ["--seconds", "0.01"], "extract": ["as root"], "repair": ["as root.frec"]}.get(command, [])
        good(command, "open.frec", *more)
    root = os.geteuid() == 0
    if root:
        os.setresuid(65534, 65534, 0)  # the real uid too: access(2) uses it, and so does click
    try:
        yield "secret.frec"
    finally:
        if root:
            os.setresuid(0, 0, 0)


def test_a_file_without_read_permission_is_reported_like_a_missing_one(secret: str) -> None:
    result = run("verify", "--json", secret, "open.frec")
    assert (result.exit_code, result.stderr) == (1, "")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["ok"] for report in reports] == [False, True]
    assert reports[0]["errors"] == ["secret.frec: Permission denied"]
    result = run("doctor", secret, "open.frec")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "  warning  unreadable: secret.frec: Permission denied\n" in result.stdout
    assert "\nopen.frec\n  records      12, complete" in result.stdout
    for command in (["info"], ["ls"], ["bench"], ["extract", "out"], ["repair", "out"], ["compact"]):
        name, *rest = command
        assert failed(name, secret, *rest) == "error: secret.frec: Permission denied\n"


@pytest.mark.parametrize(("typed", "meant"), [("pakc", "pack"), ("verfy", "verify"), ("selct", "select"), ("zzz", "")])
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    told = failed(typed, "x.frec", status=2)
    assert f"No such command '{typed}'" in told
    assert (f"did you mean '{meant}'?" in told) == bool(meant)


def test_the_page_has_the_options_of_each_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert with_tables(page) == page, "run scripts/cli_options.py"


def test_the_tab_key_completes_commands_and_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    line = 'eval "$(_FASTRECORD_COMPLETE=bash_source fastrecord)"'
    assert line in page
    script = (
        f"PATH={Path(sys.executable).parent}:$PATH; {line} || exit 1\n"
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fastrecord_completion fastrecord; '
        'echo "${COMPREPLY[@]}"; }\n'
        "try fastrecord sel; try fastrecord select --dr; try fastrecord pac"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "select\n--drop-keys\npack\n", "")
