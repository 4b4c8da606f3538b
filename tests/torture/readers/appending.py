"""The writer of `readers`: `python -m tests.torture.readers.appending FOLDER LIMIT` until killed.

It appends records of tests/torture/known.py to FOLDER/x.frec in every supported way. It begins a
new generation of the file beyond LIMIT bytes. After each commit it adds a line to FOLDER/committed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import fastrecord as fr
from tests.torture import known

# Per generation; each setting makes the following records longer.
_MOST_LATER = 3


class Appender:
    """Appends to a file, depending on its content and on chance.

    Args:
        folder: The folder of x.frec.
        limit: Size in bytes at which a new generation replaces the file.
        draw: The random generator.
    """

    def __init__(self, folder: Path, limit: int, draw: Random) -> None:
        self.path = folder / "x.frec"
        self._log = os.open(folder / "committed", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._limit = limit
        self._draw = draw

    def session(self) -> None:
        """Open the file, do some work and end in a random way."""
        if not self.path.exists() or self.path.stat().st_size > self._limit:
            self._begin_generation()
        with opened(self.path) as writer:
            generation = writer.metadata["generation"]
            commits = known.Commits(generation)
            for _ in range(self._draw.randrange(1, 15)):
                step = self._draw.random()
                if step < 0.02 and sum(name.startswith("later") for name in writer.schema) < _MOST_LATER:
                    self._add_field(writer, generation)
                elif step < 0.03 and (later := [name for name in writer.schema if name.startswith("later")]):
                    writer.drop_field(later[0])
                    writer.commit()
                else:
                    self._append(writer, generation, commits.next_end(len(writer)))
                    writer.commit()
                self._write_down(generation, len(writer))
            if self._draw.random() < 0.3:
                # A part of a commit, which readers must never see.
                self._append(writer, generation, commits.next_end(len(writer)) - 1)
                writer.abort()

    def _begin_generation(self) -> None:
        generation = 1
        if self.path.exists():
            with fr.Reader(self.path) as reader:
                generation = reader.metadata["generation"] + 1
        commits = known.Commits(generation)
        with fr.Writer(self.path, known.SCHEMA, "w", metadata={"generation": generation}) as writer:
            for _ in range(self._draw.randrange(1, 6)):
                self._append(writer, generation, commits.next_end(len(writer)))
                writer.commit()
        self._write_down(generation, len(writer))

    def _append(self, writer: fr.Writer, generation: int, end: int) -> None:
        names = list(writer.schema)
        while (first := len(writer)) < end:
            if self._draw.random() < 0.5:
                number = writer.append(known.record(generation, first, names))
            else:
                stop = min(end, first + self._draw.randrange(1, 20))
                columns = {
                    name: [known.value(generation, number, name) for number in range(first, stop)] for name in names
                }
                number = writer.extend(columns)
            if number != first:
                raise known.WrongDataError(f"record {first} got the number {number}")

    def _add_field(self, writer: fr.Writer, generation: int) -> None:
        ever = writer.metadata.get("later", 0)
        name = f"later{ever}"
        writer.metadata = {**writer.metadata, "later": ever + 1}
        with writer.add_field(name, known.field_type(name)) as filler:
            filler.extend(known.value(generation, number, name) for number in range(len(writer)))

    def _write_down(self, generation: int, count: int) -> None:
        os.write(self._log, f"{generation} {count}\n".encode())


@contextmanager
def opened(path: Path) -> Iterator[fr.Writer]:
    """Open a file to append; retry, as the experiment's own process may hold its lock for a moment.

    Raises:
        LockedError: another process holds it.
    """
    while True:
        try:
            writer = fr.Writer(path, mode="a")
            break
        except fr.errors.LockedError as error:
            holder = re.search(r"\(pid (\d+): ", str(error))
            if holder is not None and int(holder[1]) != os.getppid():
                raise
    with writer:
        yield writer


def committed(folder: Path) -> tuple[int, int]:
    """Return the generation and record count of the last logged commit; (0, 0) if there is none."""
    try:
        with (folder / "committed").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0, 0
    whole = [line for line in lines if line.endswith(b"\n")]
    generation, count = map(int, whole[-1].split()) if whole else (0, 0)
    return generation, count


def main() -> None:
    """Append until the parent is gone."""
    parent, appender = os.getppid(), Appender(Path(sys.argv[1]), int(sys.argv[2]), Random())
    os.nice(5)  # readers with torch need a turn
    while os.getppid() == parent:
        appender.session()


if __name__ == "__main__":
    main()
