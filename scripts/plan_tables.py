"""Write the tables of docs/plan.md from `fastrecord.inspect`: python -m scripts.plan_tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benches.report.published import MACHINES, check
from fastrecord.inspect.tables import GPUS, WAYS
from fastrecord.inspect.units import size_text

PAGE = Path(__file__).parents[1] / "docs" / "plan.md"


def with_tables(page: str) -> str:
    """Return the page with its tables between `<!-- NAME: begin -->` and `<!-- NAME: end -->` written anew."""
    for name, table in (("rates", _rates()), ("gpus", _gpus()), ("ways", _ways()), ("published", _published())):
        text = "\n".join(table)
        page = re.sub(f"(?s)(<!-- {name}: begin -->\n).*?(\n<!-- {name}: end -->)", rf"\g<1>{text}\n\g<2>", page)
    return page


def _rates() -> Iterable[str]:
    yield "| GPU | `--precision` | images/s | batch | source |"
    yield "|---|---|---:|---:|---|"
    for name, gpu in GPUS.items():
        for precision, rate in gpu.rates.items():
            yield f"| {name} | {precision} | {rate.images_per_second:,g} | {rate.batch} | {rate.source} |"


def _gpus() -> Iterable[str]:
    yield "| GPU | fixed time of a step | source | link, one direction | |"
    yield "|---|---:|---|---:|---|"
    for name, gpu in GPUS.items():
        fixed = f"{1000 * gpu.fixed:.1f} ms"
        yield f"| {name} | {fixed} | {gpu.fixed_source} | {size_text(gpu.link)}/s | {gpu.link_source} |"


def _ways() -> Iterable[str]:
    yield "| `--stored` | `fastrecord pack` | bytes | of one core |"
    yield "|---|---|---:|---:|"
    for name, way in WAYS.items():
        nbytes = f"{way.nbytes:,.0f}" if way.share is None else f"{way.share:.3f} x the original's"
        options = f"`{way.options}`" if way.options else ""
        yield f"| {name} | {options} | {nbytes} | {1000 * way.decode:.2f} ms |"


def _published() -> Iterable[str]:
    checks = check()
    for machine in MACHINES:
        own = [one for one in checks if one.machine == machine.name]
        yield f"**{machine.name}**: efficiency {own[0].efficiency:.3f}. Source: {machine.source}."
        yield ""
        yield "| run | | published | planned | error | |"
        yield "|---|---|---:|---:|---:|---|"
        for one in own:
            figure, kind = one.figure, "fitted" if one.figure.fitted else "predicted"
            values = f"{figure.text(figure.value)} | {figure.text(one.planned)} | {100 * one.error:+.1f} %"
            yield f"| {figure.name} | {figure.unit} | {values} | {kind} |"
        yield ""


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
