"""The same records in every format: packing, reading, and loading into batches of pixels."""

from benches.experiments.formats import reading
from benches.harness import Bench


def run(bench: Bench) -> None:
    """Measure both parts."""
    reading.run(bench)
