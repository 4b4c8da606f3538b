"""`plot_stats`: statistics as one picture. Computes nothing of its own."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any

from fastrecord.files.places import refuse_irregular
from fastrecord.files.publish.staging import Staging
from fastrecord.interchange.libraries import library

if TYPE_CHECKING:
    from fastrecord.inspect.statistics import Distribution, FileStats, ImageStats

_KINDS = (".png", ".svg", ".pdf")
_BLUE, _GREY = "#3b78c2", "#8a8d93"
# Classes above which a histogram is a line, and fields shown.
_BARS = 40
_FIELDS = 12


def require_plot(path: str | os.PathLike[str]) -> Any:
    """Return matplotlib's `Figure`, after a check of the output.

    Raises:
        ValueError: the name does not end with .png, .svg or .pdf.
        FastRecordError: matplotlib, the extra `plot`, is not installed; the message has the pip
            line. Or the output is not a regular file.
        OSError: the output is a folder, or its folder does not exist.
    """
    if not os.fspath(path).lower().endswith(_KINDS):
        raise ValueError(f"{os.fspath(path)}: a picture's name ends with {', '.join(_KINDS)}")
    figure = library("matplotlib.figure", "plot", "a plot").Figure
    refuse_irregular(os.fspath(path))
    with Staging(path, overwrite=True):  # it can be written there
        return figure


def plot_stats(stats: FileStats, path: str | os.PathLike[str]) -> None:
    """Draw statistics: bytes, image sizes, aspects, classes, kinds of images.

    Args:
        stats: A result of `stats`.
        path: The picture, which is replaced; its name ends with .png, .svg or .pdf.

    Raises:
        ValueError: the name ends with something else.
        FastRecordError: matplotlib, the extra `plot`, is not installed; the message has the pip
            line.
        OSError: the file cannot be written.
    """
    figure = require_plot(path)(figsize=(15, 8.5), layout="constrained")
    axes = iter(figure.subplots(2, 3).flat)
    name = os.path.basename(stats.files[0]) + (f" and {len(stats.files) - 1:,} more" if len(stats.files) > 1 else "")
    figure.suptitle(_plain(f"{name}: {stats.records:,} records"))
    _draw_bytes(next(axes), stats)
    images = next(((field.name, field.images) for field in stats.fields if field.images is not None), None)
    if images is not None:
        field, about = images
        for side, numbers in (("width", about.width), ("height", about.height)):
            _draw_distribution(next(axes), numbers, f"{field}: {side}", "pixels")
        _draw_distribution(next(axes), about.aspect, f"{field}: aspect", "width / height")
        _draw_kinds(next(axes), field, about)
    _draw_classes(next(axes), stats)
    for rest in axes:
        rest.set_axis_off()
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a font lacks characters of a name
        figure.savefig(picture, format=os.fspath(path)[-3:].lower(), dpi=100)
    with Staging(path, overwrite=True) as staging:
        staging.write(picture.getvalue())


def _plain(text: str) -> str:
    """Return a text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _draw_bytes(axes: Any, stats: FileStats) -> None:
    fields = sorted(stats.fields, key=lambda field: -(field.bytes.sum if field.bytes else 0))[:_FIELDS][::-1]
    names = [_plain(field.name) for field in fields]
    axes.barh(names, [(field.bytes.sum if field.bytes else 0) / 1e6 for field in fields], color=_GREY, label="values")
    axes.barh(names, [field.stored / 1e6 for field in fields], height=0.4, color=_BLUE, label="stored")
    axes.set(title="Bytes per field", xlabel="MB")
    axes.legend(loc="lower right")


def _draw_distribution(axes: Any, numbers: Distribution | None, title: str, unit: str) -> None:
    axes.set(title=_plain(title), xlabel=unit, ylabel="images")
    if numbers is None:
        return
    if numbers.min == numbers.max:
        axes.bar([numbers.min], [sum(numbers.counts)], color=_BLUE)
    else:
        axes.stairs(numbers.counts, numbers.edges, fill=True, color=_BLUE)
    axes.axvline(numbers.median, color="black", linewidth=0.8, linestyle="--", label=f"median {numbers.median:,.4g}")
    axes.legend()


def _draw_kinds(axes: Any, field: str, images: ImageStats) -> None:
    kinds = {**images.formats, **images.modes, **images.subsampling}
    kinds |= {"progressive": images.progressive, "packed": images.packed, "crop index": images.crop_index}
    shares = [100 * count / max(images.sampled, 1) for count in kinds.values()]
    axes.barh([_plain(kind) for kind in kinds][::-1], shares[::-1], color=_BLUE)
    axes.set(title=_plain(f"{field}: kinds, of {images.sampled:,} looked at"), xlabel="%", xlim=(0, 100))


def _draw_classes(axes: Any, stats: FileStats) -> None:
    if stats.classes is None:
        axes.set_axis_off()
        return
    counts = sorted(stats.classes.counts.items(), key=lambda one: -one[1])
    axes.set(title=f"Records per class: {len(counts):,} classes, imbalance {stats.classes.imbalance:.4g}")
    if len(counts) <= _BARS:
        axes.bar([_plain(name[:24]) for name, _ in counts], [count for _, count in counts], color=_BLUE)
        axes.tick_params(axis="x", rotation=90)
    else:
        axes.stairs([count for _, count in counts], fill=True, color=_BLUE)
        axes.set(xlabel="classes, largest first")
    axes.set_ylim(bottom=0)
