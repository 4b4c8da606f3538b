"""Steps that recipes of operations draw, and parts that crops show, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastrecord as fr
from fastrecord import transforms as T  # noqa: N812
from fastrecord._core import Recipe

SIZE = (48, 64)  # height, width
Step = dict[str, Any]


def recipe(
    operations: Sequence[T.Operation], stream: str = "image", view: int = 0, after: Sequence[Any] = ()
) -> Recipe:
    described = {
        "operations": [one.spec() for one in operations],
        "to_float": None,
        "after": [one.spec() for one in after],
    }
    return Recipe(json.dumps(described), stream, view)


def drawn(made: Recipe, n: int, *, seed: int = 1, epoch: int = 2) -> Iterator[list[Step]]:
    """Return the steps on bytes of each position."""
    for position in range(n):
        yield json.loads(made.draw(seed, epoch, position, SIZE))["steps"]


def label(kind: str, **numbers: Any) -> tuple[Any, ...]:
    """Return a step as a word and its numbers, without rounding errors."""
    numbers.pop("interpolation", None)
    numbers.pop("fill", None)
    values = (numbers[name] for name in sorted(numbers) if numbers[name] is not None)
    # Adding 0 makes -0 a 0.
    return kind, *(round(float(one), 3) + 0 for value in values for one in np.atleast_1d(value))


def labels(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    return [label(step["step"], **{name: value for name, value in step.items() if name != "step"}) for step in steps]


def write_image(path: Path, times: int) -> Path:
    """Write a file of one image of `SIZE`, many times."""
    height, width = SIZE
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        for _ in range(times):
            writer.append({"image": f"P6\n{width} {height}\n255\n".encode() + bytes(3 * height * width)})
    return path


def shown_parts(path: Path, sample: Mapping[str, Any], seed: int, epoch: int) -> dict[str, NDArray[np.float64]]:
    """Return left, top, right and bottom of the part that each output shows, in the order of the epoch."""
    infos: list[T.BatchInfo] = []

    def noted(batch: Any, info: T.BatchInfo) -> Any:
        infos.append(info)
        return batch

    data = fr.FastRecordDataset(path, fields=("image",))
    loader = fr.FastRecordLoader(data, 500, shuffle=True, seed=seed, sample=sample, batch_transform=noted)
    loader.set_epoch(epoch)
    assert sum(1 for _ in loader) == len(infos)
    return {name: np.concatenate([info.views[name].boxes for info in infos]) for name in sample}
