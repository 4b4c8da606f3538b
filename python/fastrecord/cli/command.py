"""`command` makes a subcommand from the function that does the work and from one that formats its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import click

from fastrecord._core import FastRecordError
from fastrecord.cli.text import describe, progress_of_total, say
from fastrecord.options import Command, as_flags, derived, given, parameters, path_type, texts

quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar. Without a terminal on stderr there is none anyway."
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as JSON: one object, or a line for each FILE, record or finding.",
)
# Parameters of functions that commands fill in.
_OURS = ("progress", "store")
# Names of parameters that are an output, which -o gives too.
_OUTPUTS = ("out", "destination", "folder")


def command(
    behind: Callable[..., Any],
    usage: str,
    *,
    unit: str = "B",
    each: bool = False,
    failed: Callable[[Any], bool] = lambda _: False,
    to_dict: Callable[[Any], Mapping[str, Any]] = lambda result: result.to_dict(),
    plot: Callable[[Any, str], None] | None = None,
    **changes: Mapping[str, Any],
) -> Callable[[Callable[[Any], Iterable[str]]], click.Command]:
    """Make a command of a function from results to lines, whose docstring is the help.

    Args:
        behind: The function that does the work: its first parameters are the paths, and the others
            options.
        usage: The paths, such as "FILE... OUT".
        unit: What its progress counts.
        each: Call it for each FILE, and continue after an error.
        failed: Whether a result means exit status 1.
        to_dict: Returns a result for `--json`.
        plot: Draws a result, for `--plot`.
        changes: Attributes of options, as for `derived`.
    """
    names = list(parameters(behind))
    paths = names[: len(usage.split())]

    def add(lines: Callable[[Any], Iterable[str]]) -> click.Command:
        def run(
            ctx: click.Context, /, as_json: bool, quiet: bool = False, picture: str | None = None, **options: Any
        ) -> None:
            def report(message: str) -> None:
                say(f"error: {message}", err=True)
                ctx.meta["failed"] = True

            def work(**options: Any) -> None:
                description = str(options[paths[0]]) if each else None
                try:
                    if picture is not None:
                        from fastrecord.inspect.plots import require_plot

                        require_plot(picture)  # an error before the work
                    with progress_of_total(quiet=quiet, unit=unit, unit_scale=unit == "B", desc=description) as show:
                        result = behind(**options, **({"progress": show} if "progress" in names else {}))
                except ValueError as error:
                    raise click.UsageError(as_flags(str(error), behind)) from error
                if plot is not None and picture is not None:
                    plot(result, picture)
                say(*[json.dumps(to_dict(result))] if as_json else lines(result))
                ctx.meta["failed"] = ctx.meta.get("failed") or failed(result)

            options = given(options)
            for path in options.pop(paths[0]) if each else ():
                try:
                    work(**options, **{paths[0]: path})
                except (FastRecordError, OSError) as error:
                    report(describe(error))
            if not each:
                work(**options)
            if ctx.meta.get("failed"):
                ctx.exit(1)

        run.__doc__, run.__name__ = lines.__doc__, lines.__name__
        made: Command = json_option(click.pass_context(run))
        if "progress" in names:
            made = quiet_option(made)
        if plot is not None:
            text = "Also draw it: .png, .svg or .pdf. Replaces PICTURE."
            made = click.option("--plot", "picture", type=path_type, metavar="PICTURE", help=text)(made)
        others = [name for name in names[len(paths) :] if name in texts(behind) and name not in _OURS]
        if others:
            words = {name: word.strip("[.]") for name, word in zip(paths, usage.split(), strict=True)}
            made = derived(behind, *others, words=words, **changes)(made)  # type: ignore[arg-type]
        return click.command(arguments(usage, paths)(made))

    return add


def arguments(usage: str, names: Sequence[str]) -> Callable[[Command], Command]:
    """Let a command take paths as its usage says, by some names; an output is the last one, or given as -o."""
    words = usage.split()
    out = words[-1] if len(words) > 1 and names[-1] in _OUTPUTS else None
    if out is not None and "..." in words[0]:
        words = [usage]  # the output is the last of many

    def add(command: Command) -> Command:
        @wraps(command)
        def run(*args: Any, named: Any = None, **options: Any) -> Any:
            if out is not None:
                first, last = names[0], names[-1]
                if named and options.get(last):
                    raise click.UsageError(f"{out} is given twice")
                if len(words) == 1 and not named and len(options[first]) > 1:
                    *options[first], named = options[first]
                options[last] = named or options.get(last)
                if isinstance(options[last], tuple) and len(options[last]) == 1:
                    (options[last],) = options[last]
                if not options[last] and "[" not in out:
                    raise click.UsageError(f"Missing argument '{out}'.")
            return command(*args, **options)

        many = out is not None and "..." in out
        if out is not None:
            plain = out.strip("[.]")
            run = click.option(
                "-o",
                "--out",
                "named",
                type=path_type,
                multiple=many,
                metavar=plain,
                help=f"Another way to give {plain}.",
            )(run)
        for word, name in reversed(list(zip(words, names, strict=False))):
            count = -1 if "..." in word else 1
            required = "[" not in word and word != out
            run = click.argument(name, nargs=count, type=path_type, required=required, metavar=word)(run)
        return run

    return add
