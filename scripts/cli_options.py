"""Write the tables of options in docs/cli.md from the commands themselves: python scripts/cli_options.py."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import click

from fastrecord.cli import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
TABLE = re.compile(r"(?s)(<!-- options of ([\w ]+): begin -->\n).*?(<!-- options of \2: end -->)")
SHARED = "several commands"
SHARED_BY = 3  # from so many commands on, an option with the same meaning is in the table of shared ones

Option = tuple[str, str]  # its names with its value, and its help


def with_tables(page: str) -> str:
    """Return the page with a row for each option between the marks of a command.

    Raises:
        ValueError: a command's own options have no place, a mark names no command, or `import` has other
            options than `pack`.
    """
    commands = {name: _options(name) for name in cli.list_commands(click.Context(cli))}
    if {names for names, _ in commands.pop("import")} != {names for names, _ in commands["pack"]}:
        raise ValueError("`import` has other options than `pack`: give it a table")
    users = defaultdict(list)
    for name, options in commands.items():
        for option in options:
            users[option].append(name)
    shared = {option: names for option, names in users.items() if len(names) >= SHARED_BY}
    own = {name: [option for option in options if option not in shared] for name, options in commands.items()}
    places = {name for _, name, _ in TABLE.findall(page)}
    wanted = {SHARED, *(name for name, options in own.items() if options)}
    if places != wanted:
        raise ValueError(f"{PAGE.name}: places too few or too many for the options of {sorted(places ^ wanted)}")
    tables = {name: _table("option | meaning", options) for name, options in own.items()}
    rows = [(*option, ", ".join(f"`{name}`" for name in names)) for option, names in shared.items()]
    tables[SHARED] = _table("option | meaning | of", rows)
    return TABLE.sub(lambda found: found[1] + tables[found[2]] + found[3], page)


def _options(name: str) -> list[Option]:
    command = cli.get_command(click.Context(cli), name)
    if command is None:
        return []
    context = click.Context(command)
    found = (option.get_help_record(context) for option in command.params if isinstance(option, click.Option))
    return [option for option in found if option is not None]


def _table(heading: str, rows: list[Option] | list[tuple[str, str, str]]) -> str:
    lines = [f"| {heading} |", "|" + "---|" * (heading.count("|") + 1)]
    lines += [f"| `{_cell(first)}` | {' | '.join(map(_cell, rest))} |" for first, *rest in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
