"""The batch sampler in Lightning and Accelerate, and the snippets of docs/order.md for both."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from fastrecord.loader.resumable import ResumableLoader
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from tests.sampler.test_sampler import global_batches, permuted, ranks, records
from tests.support.programs import execute

DOCS = Path(__file__).parents[2] / "docs" / "order.md"
RECORDS = list(range(50))

pytestmark = [
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed:UserWarning"),
    # Lightning uses the old name of a torch class.
    pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning"),
]


def snippets() -> dict[str, str]:
    """The Python blocks of docs/order.md by heading."""
    sections = re.split(r"^##? (.+)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    blocks = {
        heading: re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert all(len(found) <= 1 for found in blocks.values())
    return {heading: found[0] for heading, found in blocks.items() if found}


@pytest.fixture
def run_snippet(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the block under a heading beside a `train.frec` of 12 records; returns its names."""
    shutil.copy(packed, tmp_path / "train.frec")
    monkeypatch.chdir(tmp_path)

    def run(heading: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "snippet"}
        execute(snippets()[heading], f"{DOCS.name}: {heading}", names)
        return names

    return run


def loader(sampler: FastRecordBatchSampler, workers: int = 0) -> DataLoader[int]:
    return DataLoader(RECORDS, batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]


def launch(script: str, directory: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a script in two processes; it writes each one's findings to `out.json`."""
    path = directory / "script.py"
    path.write_text(script, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, path, directory / "out.json", *arguments], check=True, timeout=110, cwd=directory)
    found: list[dict[str, Any]] = json.loads((directory / "out.json").read_text(encoding="utf-8"))
    return found


def test_every_section_with_a_snippet_is_run_below() -> None:
    assert list(snippets()) == [
        "Which records make up a batch",
        "Draws with replacement",
        "Repeated augmentation",
        "A mix of data sets",
        "Lightning",
        "Accelerate",
        "The order, step by step",
        "The order by blocks, step by step",
        "The draws, step by step",
        "The numbers of a batch, step by step",
        "The numbers of a recipe, step by step",
    ]


def test_the_draws_of_the_docs_run(run_snippet: Callable[[str], dict[str, Any]]) -> None:
    names = run_snippet("Draws with replacement")
    drawn = [row for batch in names["even"] for row in batch]
    assert len(drawn) == 100
    small = names["data"].column("image.width") <= 40
    assert not any(small[row] for batch in names["sampler"] for row in batch)


def test_the_repeats_of_the_docs_run(run_snippet: Callable[[str], dict[str, Any]]) -> None:
    names = run_snippet("Repeated augmentation")
    assert len(set(names["first"])) == len(names["first"]) // 4


def test_the_mix_of_the_docs_runs(run_snippet: Callable[[str], dict[str, Any]]) -> None:
    names = run_snippet("A mix of data sets")
    drawn = [row for batch in names["sampler"] for row in batch][:64]
    first = int((names["train"].targets == 0).sum())
    assert 44 <= sum(row < first for row in drawn) <= 46


@pytest.mark.parametrize(
    "heading",
    [
        "The order, step by step",
        "The order by blocks, step by step",
        "The draws, step by step",
        "The numbers of a batch, step by step",
        "The numbers of a recipe, step by step",
    ],
)
def test_the_golden_values_of_the_docs_are_those_of_the_code(heading: str) -> None:
    exec(snippets()[heading], {})


def test_the_plain_loop_of_the_docs_ends_at_the_start_of_the_next_epoch(
    run_snippet: Callable[[str], dict[str, Any]],
) -> None:
    names = run_snippet("Which records make up a batch")
    assert names["state"]["epoch"] == 2
    assert names["state"]["records"] == len(names["data"]) == 12
    assert records(names["sampler"]) == permuted(12, 1, 2)


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning")


@pytest.fixture
def recorder(lightning: Any) -> Callable[[], Any]:
    """Makes modules that only record their batches, with the epoch, in `seen`."""

    class Recorder(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[tuple[int, list[int]]] = []

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            self.seen.append((self.current_epoch, batch.tolist()))
            loss: torch.Tensor = self.layer(batch.float()[:, None]).mean()
            return loss

        def predict_step(self, batch: torch.Tensor) -> torch.Tensor:
            return batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recorder


@pytest.fixture
def trainer(lightning: Any) -> Callable[..., Any]:
    """Makes CPU trainers without output."""

    def make(**options: Any) -> Any:
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        options = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "devices": 1, **options}
        return lightning.Trainer(use_distributed_sampler=False, **options)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "batches"), [(0, 3), (2, 7)])
def test_lightning_trains_on_the_order_of_each_epoch_whole_or_cut_short(
    recorder: Callable[[], Any], trainer: Callable[..., Any], workers: int, batches: int
) -> None:
    module = recorder()
    trainer(max_epochs=3, limit_train_batches=batches).fit(
        module, loader(FastRecordBatchSampler(RECORDS, 8, shuffle=True), workers)
    )
    for epoch in range(3):
        seen = records(batch for number, batch in module.seen if number == epoch)
        assert seen == permuted(50, 0, epoch)[: batches * 8]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "hook", "workers"), [(7, "on_train_epoch_end", 0), (10, "on_train_batch_end", 2)])
def test_lightning_resumes_a_resumable_loader_with_the_batches_that_were_left(
    lightning: Any,
    recorder: Callable[[], Any],
    trainer: Callable[..., Any],
    tmp_path: Path,
    step: int,
    hook: str,
    workers: int,
) -> None:
    def save(trainer: Any, *_: Any) -> None:
        if trainer.global_step == step:
            trainer.save_checkpoint(tmp_path / "checkpoint.ckpt")

    callback = lightning.pytorch.callbacks.LambdaCallback(**{hook: save})

    def loader() -> Any:
        sampler = FastRecordBatchSampler(RECORDS, 8, shuffle=True, seed=4)
        return ResumableLoader(RECORDS, batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]

    whole, rest = recorder(), recorder()
    trainer(max_epochs=3, callbacks=[callback]).fit(whole, loader())
    assert records(batch for _, batch in whole.seen) == records(permuted(50, 4, epoch) for epoch in range(3))
    trainer(max_epochs=3).fit(rest, loader(), ckpt_path=tmp_path / "checkpoint.ckpt")
    assert rest.seen == whole.seen[step:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata
@pytest.mark.parametrize(("workers", "step"), [(0, 3), (0, 7), (2, 10)])
def test_torchdatas_stateful_loader_resumes_with_the_batches_that_were_left(workers: int, step: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        sampler = FastRecordBatchSampler(RECORDS, 8, shuffle=True, seed=4)
        return StatefulDataLoader(RECORDS, batch_sampler=sampler, num_workers=workers)

    broken, resumed = loader(), loader()
    for number, _ in enumerate((batch for _ in range(3) for batch in broken), start=1):
        # The state of a whole epoch is taken after it; the state of a part is taken during it.
        if number == step and step % 7:
            break
        if number == step + 1:
            broken = loader()
            list(broken)
            break
    resumed.load_state_dict(broken.state_dict())
    rest = [batch.tolist() for _ in range(2) for batch in resumed]
    expected = [record for epoch in range(3) for record in permuted(50, 4, epoch)]
    epoch, done = divmod(step, 7)
    assert records(rest) == expected[50 * epoch + 8 * done :][: len(records(rest))]
    assert len(rest) == 14 - done


def test_a_resumable_loader_wants_a_sampler_that_has_a_state() -> None:
    with pytest.raises(TypeError, match=r"wants batch_sampler=FastRecordBatchSampler\(\.\.\.\), not a BatchSampler"):
        list(ResumableLoader(RECORDS, batch_size=4))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumable_loader_goes_on_behind_the_batch_that_it_handed_out(workers: int) -> None:
    def loader() -> ResumableLoader:
        sampler = FastRecordBatchSampler(RECORDS, 8, shuffle=True, seed=4)
        return ResumableLoader(RECORDS, batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]

    whole, broken, resumed = loader(), loader(), loader()
    expected = [batch.tolist() for _ in range(2) for batch in whole]
    batches = iter(broken)
    assert [next(batches).tolist() for _ in range(3)] == expected[:3]
    resumed.load_state_dict(json.loads(json.dumps(broken.state_dict())))
    assert resumed.state_dict() == broken.state_dict()
    assert [batch.tolist() for _ in range(2) for batch in resumed] == expected[3:]


@pytest.mark.slow
def test_the_data_module_of_the_docs_trains_and_predicts(
    lightning: Any, trainer: Callable[..., Any], run_snippet: Callable[[str], dict[str, Any]]
) -> None:
    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 32 * 32, 3)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

        def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return batch[1]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = run_snippet("Lightning")["Data"]()
    fit = trainer(max_epochs=2)
    fit.fit(Classifier(), data)
    assert fit.global_step == 2 * 3
    with pytest.warns(UserWarning, match="custom batch sampler"):
        labels = torch.cat(trainer().predict(Classifier(), data))
    assert labels.tolist() == [0] * 5 + [1] * 3 + [2] * 4


ACCELERATE = """
import json, sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, gather_object
from torch.utils.data import DataLoader
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler

data = list(range(50))
splits = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))

def loader(**options):
    sampler = FastRecordBatchSampler(data, 8, rank=0, world_size=1, **{"shuffle": True, **options})
    return sampler, splits.prepare(DataLoader(data, batch_sampler=sampler, num_workers=2))

def epoch(loader):
    return [batch.tolist() for batch in loader]

sampler, prepared = loader(shuffle=True, seed=4, drop_last="pad")
found = {"epochs": [epoch(prepared), epoch(prepared)], "length": len(prepared)}
batches = iter(prepared)
for _ in range(3):
    next(batches)
state = sampler.state_dict(batches_done=3)
found["left"] = epoch(batches) + epoch(prepared)

sampler, prepared = loader(seed=5, drop_last="pad")
sampler.load_state_dict(state)
prepared.set_epoch(sampler.epoch)
found["resumed"] = epoch(prepared) + epoch(prepared)

_, prepared = loader(shuffle=False)
found["evaluated"] = [record for batch in prepared for record in splits.gather_for_metrics(batch).tolist()]

found["unprepared"] = epoch(DataLoader(data, batch_sampler=FastRecordBatchSampler(data, 4, shuffle=True)))
sampler = FastRecordBatchSampler(data, 4, shuffle=True)
found["twice"] = epoch(Accelerator(cpu=True).prepare(DataLoader(data, batch_sampler=sampler)))

processes = gather_object([found])
if splits.is_main_process:
    with open(sys.argv[1], "w") as file:
        json.dump(processes, file)
splits.end_training()
"""


@pytest.fixture(scope="module")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of two processes under Accelerate, for each way of using it."""
    pytest.importorskip("accelerate")
    return launch(ACCELERATE, tmp_path_factory.mktemp("accelerate"))


@pytest.mark.ddp
def test_accelerate_splits_each_global_batch_of_a_sampler_that_is_alone(accelerate: list[dict[str, Any]]) -> None:
    sampler = FastRecordBatchSampler(RECORDS, 8, shuffle=True, seed=4, drop_last="pad")
    for epoch in range(2):
        halves = zip(*(process["epochs"][epoch] for process in accelerate), strict=True)
        assert [first + second for first, second in halves] == list(sampler)
    assert [process["length"] for process in accelerate] == [7, 7]


@pytest.mark.ddp
def test_accelerate_resumes_with_the_batches_that_were_left(accelerate: list[dict[str, Any]]) -> None:
    for process in accelerate:
        assert len(process["resumed"]) == 4 + 7
        assert process["resumed"] == process["left"]


@pytest.mark.ddp
def test_accelerate_evaluates_each_record_once(accelerate: list[dict[str, Any]]) -> None:
    assert [sorted(process["evaluated"]) for process in accelerate] == [RECORDS, RECORDS]


@pytest.mark.ddp
def test_a_loader_that_accelerate_has_not_prepared_is_shared_by_the_sampler(accelerate: list[dict[str, Any]]) -> None:
    assert [process["unprepared"] for process in accelerate] == [list(sampler) for sampler in ranks(50, 4, 2)]


@pytest.mark.ddp
def test_accelerate_shares_a_second_time_what_the_sampler_has_shared(accelerate: list[dict[str, Any]]) -> None:
    # Unwanted but true: docs/order.md therefore says which of the two shards the data.
    seen = {record for process in accelerate for batch in process["twice"] for record in batch}
    assert len(seen) < 35
    assert {record for batch in global_batches(ranks(50, 4, 2)) for record in batch} == set(RECORDS)


@pytest.mark.slow
def test_the_accelerate_loop_of_the_docs_ends_at_the_start_of_the_next_epoch(
    run_snippet: Callable[[str], dict[str, Any]],
) -> None:
    pytest.importorskip("accelerate")
    names = run_snippet("Accelerate")
    assert names["state"]["epoch"] == names["loader"].iteration == 2
    assert records(names["sampler"]) == permuted(12, 0, 2)
