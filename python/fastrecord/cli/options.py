"""Options that several subcommands share."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """A range without nan. click accepts nan, which is neither below nor above the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


# Do not check readability here: the command reports unreadable files one by one and continues with
# the rest.
path_type = click.Path(readable=False)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar. (There is none either if stderr is no terminal.)"
)
summary_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
