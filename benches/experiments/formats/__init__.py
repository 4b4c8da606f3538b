"""The same records in every format: packing, reading, and loading into batches of pixels."""

from benches.harness import Bench


def run(bench: Bench) -> None:
    """Measure all parts."""
    # Imported here: both import torch, which would take 0.3 GB in the process of each contender.
    from benches.experiments.formats import loading, reading

    reading.run(bench)
    loading.run(bench)
