"""Options that several subcommands have in the same words."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """A range that nan is not in: click lets it pass, as it is neither below the range nor above it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


# A file that may not be read is told as one that is not there is: by who opens it, and the others are looked at.
path_type = click.Path(readable=False)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar. (There is none either if stderr is no terminal.)"
)
summary_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
