"""Calls that make files from files and end before all is done: the old files stay, no new one looks whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.child import run_child

OVERWRITE = '"out.frec", overwrite=True, progress=progress'
CALLS = {
    "merge": f'fr.files.merge(["a.frec", "a.frec"], {OVERWRITE})',
    "shuffle": f'fr.files.shuffle("a.frec", {OVERWRITE})',
    "select": f'fr.files.select("a.frec", {OVERWRITE})',
    "compact": 'fr.files.compact("out.frec", progress=progress)',
    "split": 'fr.files.split("a.frec", "new.frec", shards=5, overwrite=again, progress=progress)',
}
MADE = [f"new-{number:05d}-of-00005.frec" for number in range(5)]


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL", "an error"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_ended_leaves_the_old_files_and_can_be_made_again(tmp_path: Path, call: str, how: str) -> None:
    end = "1 / 0" if how == "an error" else f"os.kill(os.getpid(), signal.{how})"
    script = f"""
    write("a.frec", 200, size=200_000)
    write("out.frec", 200, size=200_000, commit_bytes=1_000_000)
    before = open("out.frec", "rb").read()
    again = False
    def progress(done, total):
        if done > 0.4 * total and not again:
            {end}
    if os.fork() == 0:
        try:
            {CALLS[call]}
        except (KeyboardInterrupt, ZeroDivisionError):
            os._exit(9)
        os._exit(0)
    print(os.wait()[1], open("out.frec", "rb").read() == before)
    for name in sorted(set(os.listdir(".")) - {{"a.frec", "out.frec"}}):
        try:
            fr.Reader(name)
            print(name, "looks whole")
        except fr.errors.NoCommitError:
            print("left")
    again = True
    print({CALLS[call]}.records, sorted(os.listdir(".")))
    """
    first, *left, last = run_child(script, tmp_path).splitlines()
    assert first == f"{9 if how == 'SIGKILL' else 9 << 8} True"
    assert set(left) == ({"left"} if how == "SIGKILL" else set())
    names = sorted(["a.frec", "out.frec", *(MADE if call == "split" else [])])
    assert last == f"{400 if call == 'merge' else 200} {names}"
