"""Runs experiments, keeps the outcomes, writes the table: `python -m tests.torture [NAME ...]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tests.torture import page as pages
from tests.torture.experiment import ROOT, measured
from tests.torture.experiments import EXPERIMENTS


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="Name the experiments, and how many cases each has.")
@click.option("--short", is_flag=True, help="As few cases as in `make test`.")
@click.option("--count", type=click.IntRange(min=1), help="So many cases, whatever the experiment.")
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Write the table of all results into it.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=ROOT / ".cache" / "torture",
    show_default=".cache/torture",
    help="Where what came of each experiment is kept, a JSON file each; those not run now keep theirs.",
)
def main(
    names: tuple[str, ...], only_list: bool, short: bool, count: int | None, page: Path | None, results: Path
) -> None:
    """Break things on purpose: the experiments NAME, by default all of them.

    Exit status: 0 nothing was lost, crashed or leaked; 1 something was; 2 wrong usage.
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no experiment {', '.join(unknown)}: there is {', '.join(known)}")
    if only_list:
        for experiment in EXPERIMENTS:
            click.echo(f"{experiment.name}: {experiment.short:,} / {experiment.long:,} {experiment.what}")
        return
    results.mkdir(parents=True, exist_ok=True)
    good = True
    for name in names or known:
        experiment = known[name]
        row = measured(experiment, count or (experiment.short if short else experiment.long))
        (results / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
        good = good and not row["failures"]
        verdict = "\n  ".join(row["failures"]) or "nothing lost, crashed or leaked"
        click.echo(f"{name}: {row['count']:,} {row['what']} in {row['seconds']} s: {row['detail']}: {verdict}")
    if page is not None:
        pages.write(page, [json.loads(file.read_text()) for file in results.glob("*.json") if file.stem in known])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
