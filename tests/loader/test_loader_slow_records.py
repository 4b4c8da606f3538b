"""A slow batch delays neither its neighbours nor closing or interrupting the loader."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.loader_kinds import Images
from tests.support.loading import make, photo, write_payloads
from tests.support.pictures import save

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_load_thread_is_left")]


def huge() -> bytes:
    """Return a progressive JPEG of 32 million pixels, which takes a second to decode."""
    image = Image.new("RGB", (6_500, 5_000), (10, 200, 30))
    return save(image, "JPEG", progressive=True, quality=50)


@pytest.fixture(scope="module")
def with_huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 41 records whose record 1 takes as long as all others together."""
    payloads = [photo(number) for number in range(41)]
    payloads[1] = huge()
    return write_payloads(tmp_path_factory.mktemp("huge") / "train.frec", payloads)


@pytest.fixture(scope="module")
def mostly_huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose first record decodes at once, and whose 15 others take seconds together."""
    return write_payloads(tmp_path_factory.mktemp("huge") / "train.frec", [photo(0), *[huge()] * 15])


def test_a_slow_record_holds_up_no_other_of_its_batch_or_the_next_ones(with_huge: Path) -> None:
    loader = make(with_huge, 10, threads=2, prefetch=3)
    batches = iter(loader)
    plan = loader._plan
    assert plan is not None
    loading = plan.start(2)
    rows = [np.arange(start, start + 10) for start in range(0, 40, 10)]
    loads = [loading.submit(0, 0, row, row) for row in rows]
    for load in loads[1:]:
        load.wait()
    # All images of the batches after and beside it are made: it is the last one.
    while (made := plan.counters()[0]) < 39:
        time.sleep(0.001)
    assert (made, loads[0].is_ready()) == (39, False)
    loads[0].wait()
    assert plan.counters()[0] == 40
    loading.close()
    assert [len(images) for images, _ in batches] == [10, 10, 10, 10, 1]


def test_closing_wakes_another_thread_that_waits_for_a_batch(mostly_huge: Path) -> None:
    loader = make(mostly_huge, 16, threads=1)
    found: list[str] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except RuntimeError as error:
            found.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    while loader.stats().images == 0:
        pass
    loader.close()
    consumer.join()
    assert found == ["the loader's threads were closed before the batch was whole: iterate anew"]
    assert loader.stats().images < 16


def test_an_interrupt_does_not_wait_for_the_batch_that_is_being_decoded(mostly_huge: Path) -> None:
    script = """
        loader = kind.make(16, threads=1)
        def interrupt():
            while loader.stats().images == 0:
                pass
            os.kill(os.getpid(), signal.SIGINT)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            for _ in loader:
                raise RuntimeError("the batch with the huge images was waited for")
        except KeyboardInterrupt:
            print("interrupted", loader.stats().images < 16)
        interrupter.join()
    """
    assert Images(mostly_huge).run(script) == "interrupted True\n"
