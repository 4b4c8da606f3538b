"""Options that several subcommands have in the same words."""

from __future__ import annotations

import click

quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar. (There is none either if stderr is no terminal.)"
)
summary_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
