"""The command `fastrecord`.

Imports a subcommand's module when it is called, so that `--help` is fast.
"""

from __future__ import annotations

import difflib
import logging
from importlib import import_module
from keyword import iskeyword
from typing import Any, NoReturn

import click

from fastrecord._core import FastRecordError, __version__, deliver_events
from fastrecord.cli.text import describe, say, unwritten
from fastrecord.errors import Code
from fastrecord.store.address import without_secrets
from fastrecord.store.option import store_option
from fastrecord.terminal import PrintableFormatter, drop_unwritten, occupy_streams, printable

# Name -> module of this folder that defines the command (`list_` avoids a Python name), and its line in the
# overview.
_COMMANDS = {
    "pack": ("packing", "Pack a folder of images into one file."),
    "import": ("packing", "Store the records of another format in one file."),
    "info": ("info", "Show what files hold."),
    "ls": ("info", "List the records of a file."),
    "head": ("info", "Show the first records of a file, with all fields."),
    "stats": ("look", "Show what records are like: sizes, images, classes, duplicates."),
    "browse": ("look", "Write an HTML page that shows records."),
    "diff": ("look", "Show which records of two files differ."),
    "extract": ("records", "Write records back into files of their own."),
    "export": ("records", "Write records in a format of other tools."),
    "verify": ("verify", "Check every checksum of files."),
    "repair": ("rewrite", "Save what can be saved of a damaged file."),
    "merge": ("rewrite", "Write the records of several files into one."),
    "split": ("rewrite", "Write the records of a file into several."),
    "shuffle": ("rewrite", "Write the records of a file in random order."),
    "select": ("records", "Write some records of a data set: chosen, or without some."),
    "index": ("rewrite", "Add the crop index to the JPEGs of files."),
    "manifest": ("records", "Name the files of a folder as the shards of one data set."),
    "copy": ("records", "Copy a data set to an object store, or from there."),
    "compact": ("rewrite", "Rewrite a file without its unused bytes."),
    "doctor": ("doctor", "Report what makes loading slow or unsafe on this machine."),
    "bench": ("bench", "Measure reading, decoding and loading of a file on this machine."),
    "plan": ("plan", "Predict the speed of a training run, and what limits it."),
}
_WITH_STORES = (
    *("pack", "import", "info", "ls", "head", "stats", "browse", "diff", "extract", "select", "verify", "manifest"),
    *("copy", "doctor"),
)


class _Commands(click.Group):
    """Finds subcommands by name, and turns expected errors into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"fastrecord.cli.{_COMMANDS[cmd_name][0]}")
        command = getattr(module, f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name)
        if not isinstance(command, click.Command):
            return None
        if cmd_name in _WITH_STORES and store_option not in command.params:
            command.params.append(store_option)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
        if near and args[0] not in _COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"No such command {printable(args[0])!r}: did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as err:
            _tell("interrupted" if not str(err) else f"interrupted: {err}", err)
            ctx.exit(130)
        except click.UsageError as err:
            raise click.UsageError(without_secrets(err.format_message()), err.ctx) from None  # it may name an argument
        except BrokenPipeError:
            raise  # click ends quietly: the reader of the pipe, such as `head`, has closed it
        except (FastRecordError, OSError, IndexError, MemoryError) as err:
            _tell(f"error: {describe(err)}", err)
            ctx.exit(2 if ctx.invoked_subcommand == "diff" else 1)  # as `diff` and `cmp` do
        except RuntimeError as err:
            if getattr(err, "code", None) != Code.THREADS:
                raise
            _tell(f"error: {err}", err)
            ctx.exit(1)


def _tell(line: str, err: BaseException) -> None:
    say(line, *getattr(err, "__notes__", ()), err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fastrecord", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log to stderr; -vv for debug output.")
@click.pass_context
def cli(ctx: click.Context, verbose: int) -> None:
    """Pack training records into one file; show, extract, check, rewrite and measure it.

    Exit status: 0 good; 1 an error, or a file that is damaged; 2 wrong usage; 130 Ctrl-C.
    """
    if verbose:
        _log_to_stderr(ctx, logging.INFO if verbose == 1 else logging.DEBUG)


def _log_to_stderr(ctx: click.Context, level: int) -> None:
    """Log to stderr until the command has ended."""
    logger, handler = logging.getLogger("fastrecord"), logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)

    def undo() -> None:
        deliver_events()
        logger.removeHandler(handler)
        logger.setLevel(before)

    ctx.call_on_close(undo)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    occupy_streams()
    try:
        cli.main(prog_name="fastrecord")
    # Raised by click while printing --help or --version; commands handle their own.
    except OSError as err:
        say(f"error: {describe(unwritten(err, 'standard output'))}", err=True)
        raise SystemExit(1) from err
    finally:
        drop_unwritten()
    raise SystemExit(0)
