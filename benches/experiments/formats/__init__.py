"""The same records in every format: packing, reading, and loading into batches of pixels."""

from benches.experiments.formats import loading, reading
from benches.harness import Bench


def run(bench: Bench) -> None:
    """Measure all parts."""
    reading.run(bench)
    loading.run(bench)
