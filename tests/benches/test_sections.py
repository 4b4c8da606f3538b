"""Each experiment's section of the page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benches.harness import Row
from benches.harness.process import ROOT
from benches.report.cases import load
from benches.report.documents import documents
from benches.report.page import page
from benches.report.plots import Pictures
from tests.benches.made import row, save


def page_of(folder: Path, name: str, rows: Iterable[Row]) -> list[str]:
    """The lines of a page of one experiment, drawn too."""
    return page(load(save(folder, name, rows)), Pictures(folder / "img", "img")).splitlines()


def test_formats_are_a_matrix_for_each_set_of_records(tmp_path: Path) -> None:
    rows = [
        row("formats", f"{case} of 1,000 images of 110 KB{more}", name, unit, value, value * 1.5)
        for name, factor in (("fastrecord", 1.0), ("LMDB", 2.0))
        for case, more, unit, value in (
            ("random batches of 256", ", page cache warm, copied into one buffer", "records/s", 9000 / factor),
            ("random batches of 256", ", page cache cold, copied into one buffer", "records/s", 3000 / factor),
            ("open and read one record", ", page cache warm", "s", 0.001 * factor),
        )
    ]
    lines = page_of(tmp_path, "formats", rows)
    heads = "random batches of 256, warm, copied, records/s | random batches of 256, cold, copied, records/s"
    at = lines.index(f"| format | {heads} | open and read one record, warm, ms |")
    assert lines[at + 2] == "| **fastrecord** | **11,250** | **3,750** | **1.25** |"
    assert lines[at + 3] == "| LMDB | 5,625 (2.00 x) | 1,875 (2.00 x) | 2.50 (2.00 x) |"
    assert (tmp_path / "img" / "formats-images-of-110-kb.svg").exists()
    assert "| formats, reading and loading: fastrecord is first | in 3 of 3 rows |" in lines


def test_batch_sizes_are_columns_and_the_flatness_is_on_top(tmp_path: Path) -> None:
    rows = [
        row("small_batches", f"loading, batch {size}, 2 workers: a pair", name, "us", value / size, batch=size)
        for size in (8, 16, 32)
        for name, value in (("fastrecord", 80.0), ("PNG files", 800.0))
    ]
    flat = "a pair at batch 8 against batch 32"
    rows.append(row("small_batches", flat, "fastrecord", "times", 1.25, 1.35))
    for workers, value in (("no workers", 1.5), ("1 worker or thread", 1.25), ("2 workers or threads", 2.0)):
        rows.append(row("small_batches", f"loading, {workers}: {flat}", "fastrecord", "times", value))
    lines = page_of(tmp_path, "small_batches", rows)
    assert f"| small batches: {flat} | 1.30 times (1.25 - 1.35) |" in lines
    assert f"| small batches: loading: {flat} | 1.25 to 2.00 times, with 3 numbers of workers |" in lines
    at = lines.index("| source | batch 8, us | batch 16, us | batch 32, us |")
    assert lines[at + 2] == "| **fastrecord** | **10.0** | **5.00** | **2.50** |"
    assert lines[at + 3] == "| PNG files | 100 (10.0 x) | 50.0 (10.0 x) | 25.0 (10.0 x) |"
    assert "![loading, 2 workers: a pair, us](img/small-batches-1.svg)" in lines


def test_a_ladder_keeps_the_order_of_its_rungs(tmp_path: Path) -> None:
    case = "a model, 1 rank"
    rungs = [("constant", 30.0, None), ("queue", 20.0, -10.0), ("the file", 40.0, 20.0)]
    steps = f"{case}: a step on data of each kind"
    rows = [row("bottleneck", steps, name, "ms/step", ms, layer_ms=cost, data_wait=0.25) for name, ms, cost in rungs]
    kept = "speed on the file, of the speed on constant data on the device"
    rows.append(row("bottleneck", f"{case}: {kept}", "the file", "%", 75.0, 77.0, verdict="The model limits."))
    lines = page_of(tmp_path, "bottleneck", rows)
    at = lines.index("| data | a step, ms | the layer costs, ms | waiting for data |")
    assert lines[at + 2 : at + 5] == [
        "| constant | 30.0 |  | 25 % |",
        "| queue | 20.0 | -10.00 | 25 % |",
        "| the file | 40.0 | +20.00 | 25 % |",
    ]
    assert f"- {kept}: the file: 76.0 % (75.0 - 77.0). The model limits." in lines
    assert any(line.endswith("| 76.0 % (75.0 - 77.0), by the file |") for line in lines)


def test_accuracies_of_seeds_are_compared_by_their_means(tmp_path: Path) -> None:
    rows = [
        row("recipe", "accuracy", name, "accuracy %", *values, difference=difference, interval=1.5)
        for name, values, difference in (("1 rank", (90.0, 92.0), 0.0), ("2 ranks", (92.0, 93.0), 1.5))
    ]
    lines = page_of(tmp_path, "recipe", rows)
    assert "| 1 rank | 91.00 | 1.41 | 90.00 - 92.00 |  |" in lines
    assert "| 2 ranks | 92.50 | 0.71 | 92.00 - 93.00 | +1.50 ± 1.50 |" in lines
    assert any(line.endswith("| +1.50 ± 1.50 points, 2 ranks |") for line in lines)


def test_imports_and_exports_are_a_row_for_each_format(tmp_path: Path) -> None:
    rates = {
        "import from LMDB": {"fastrecord": 100, "fastrecord pack": 200, "the library's read": 400},
        "export to LMDB": {"fastrecord": 300, "the library's writer": 100},
    }
    rows = [
        row("interchange", case, name, "images/s", value, yardstick="import" in case)
        for case, found in rates.items()
        for name, value in found.items()
    ]
    rows.append(row("interchange", "memory: import from LMDB", "fastrecord", "bytes", 25e6))
    lines = page_of(tmp_path, "interchange", rows)
    assert "| LMDB | 100 | 0.50 | 0.25 | 25 MB | 300 | 3.00 | - |" in lines
    assert "| export and packing: fastrecord is first | in 1 of 1 rows |" in lines


def test_scaling_has_the_parts_of_a_step_and_a_curve_for_each_network(tmp_path: Path) -> None:
    rows = []
    for nodes, ranks, rate in ((1, 1, 99.0), (1, 2, 180.0), (2, 2, 170.0), (4, 4, 320.0)):
        case, net = ("10 Gb/s", {"net": "10Gb/s"}) if nodes > 1 else ("one node", {})
        settings = {"ideal": 100.0 * ranks, "efficiency": rate / 100 / ranks, "data_ms": 1.5, "nodes": nodes, **net}
        name = f"{nodes} x {ranks // nodes}"
        rows.append(row("scaling", case, name, "images/s", rate, rate + 2, ranks=ranks, **settings))
    lines = page_of(tmp_path, "scaling", rows)
    assert "| 1 x 2 | 181 | 180 - 182 | 90 % | 1.50 |" in lines
    assert "| scaling: 10 Gb/s, 4 x 1: of the ideal images/s | 80 % |" in lines
    assert (tmp_path / "img" / "scaling.svg").exists()


def test_aims_are_beside_what_was_measured(tmp_path: Path) -> None:
    first, cached = "the first epoch of 1,000 images of 110 KB from the store", "bytes: a cache of 25 % of the data"
    opening = "opening a data set of 2,000 shards"
    rows = [
        row("store", first, "fastrecord", "images/s", 90, 80, 100),
        row("store", first, "the same bytes by obstore alone", "images/s", 100, 100, 100),
        row("store", first, "LitData, no workers", "images/s", 30),
        row("store", first, "LitData, 2 workers", "images/s", 60),
        row("store", cached, "fastrecord", "bytes", 1020e6),
        row("store", cached, "the least possible", "bytes", 1000e6),
        row("store", opening, "fastrecord", "s", 0.2, 0.1, 0.3),
        row("store", f"requests: {opening}", "fastrecord", "requests", 4),
        row("store", f"requests: {opening}, 8 processes at once", "fastrecord", "requests", 6),
    ]
    lines = page_of(tmp_path, "store", rows)
    assert "## Object stores" in lines
    for expected in (
        "| the first epoch, beside obstore alone | 90.0 images/s | 100 images/s | 0.90 (0.80 - 1.00) | at least 0.9 |",
        "| the first epoch, beside LitData | 90.0 images/s | 60.0 images/s | 1.50 (1.33 - 1.67) | at least 1 |",
        "| 25 % in the cache: bytes, beside the least | 1.02 GB | 1.00 GB | 1.02 | at most 1.02 |",
        "| opening very many shards, one process | 0.2 s |  | 0.2 s (0.1 - 0.3) | at most 1.00 s |",
        "| requests of several, beside those of one | 6.00 requests | 4.00 requests | 1.50 | at most 1 |",
        "| store: the first epoch, beside obstore alone | 0.90 (0.80 - 1.00); the aim: at least 0.9 |",
    ):
        assert expected in lines
    assert not any("Streaming" in line for line in lines if line.startswith("| the first"))  # it was not measured


def test_augmented_recipes_are_beside_crop_and_flip_and_their_peers(tmp_path: Path) -> None:
    case = "crop, flip, TrivialAugmentWide, float16, erasing 0.1: CPU time an image, 1 thread"
    training = "a training's images/s: crop, flip, TrivialAugmentWide, 2 threads or workers each"
    rows = [
        row("augmented", case, "fastrecord", "s", 0.0011, 0.0010),
        row("augmented", case, "fastrecord, crop and flip alone", "s", 0.0010, 0.0010, yardstick=True),
        row("augmented", case, "torchvision v2, tensors, Pillow", "s", 0.0050, 0.0050),
        row("augmented", case, "torchvision v2, tensors, torchvision.io", "s", 0.0044, 0.0030),
        row("augmented", training, "fastrecord", "images/s", 2000.0),
        row("augmented", training, "NVIDIA DALI, CPU", "images/s", 500.0),
    ]
    lines = page_of(tmp_path, "augmented", rows)
    for expected in (
        "| TrivialAugment: CPU time, of crop and flip alone | 1.05 ms | 1.00 ms | 1.05 (1.00 - 1.10) | at most 1.12 |",
        "| TrivialAugment: times as fast as v2 on tensors | 1.05 ms | 3.70 ms | 3.52 (3.00 - 4.00) | at least 3.4 |",
        "| augmented recipes: fastrecord is first | in 2 of 2 rows |",
    ):
        assert expected in lines
    readme = documents(ROOT, load(tmp_path))[ROOT / "README.md"]
    what = "crop, flip, TrivialAugmentWide, 2 threads or workers each"
    assert f"| {what} | 2,000 images/s | NVIDIA DALI, CPU 500 images/s | 4.00 x as fast |" in readme


def test_ray_and_very_many_shards_have_sections(tmp_path: Path) -> None:
    rates = {"fastrecord": (85.0, 90.0), "fastrecord pack": (100.0, 100.0)}
    case = "pack 1,000 files of 110 KB to 4 shards, page cache warm"
    packs = [row("ray", case, name, "images/s", *values) for name, values in rates.items()]
    lines = page_of(tmp_path / "ray", "ray", packs)
    ratio = "0.88 (0.85 - 0.90) | at least 0.8 |"
    assert f"| packing with two workers, beside two threads | 87.5 images/s | 100 images/s | {ratio}" in lines
    seconds = {"500 shards": 0.1, "100,000 shards": 0.5, "100,000 shards, 8 processes at once": 1.5}
    opened = [row("scale", f"opening a data set of {what}", "fastrecord", "s", took) for what, took in seconds.items()]
    lines = page_of(tmp_path / "scale", "scale", opened)
    assert "| opening the data set, one process | 0.5 s | 0.5 s | at most 1.00 s |" in lines
    assert "| opening it, several at once | 1.50 s | 1.50 s | at most 1.00 s |" in lines
