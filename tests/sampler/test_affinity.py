"""Affinity: the global batches stay what they are; each node mostly has its own shards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord.inspect.cache_estimate import _without_replacement, spill
from fastrecord.sampler.affinity import Affinity, divide
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.node import NodeOrder
from tests.sampler.test_sampler import LAST, ranks
from tests.support import arrays

# (ranks, nodes): all of 1 to 8 ranks on 1 to 4 nodes.
CLUSTERS = [(count, nodes) for count in range(1, 9) for nodes in range(1, 5) if count % nodes == 0]
B = 840  # 1 to 8 ranks divide it


def orders(n: int) -> dict[str, dict[str, Any]]:
    return {
        "shuffled": {},
        "in order": {"shuffle": False},
        "blocks": {"shuffle": fr.Blocks(records=16, window=8)},
        "weights": {"weights": np.arange(n) % 3},
        "balance": {"balance": np.arange(n) % 7},
    }


def batches(samplers: Iterable[FastRecordBatchSampler], epoch: int) -> list[Counter[int]]:
    """Return the records of each global batch."""
    found: dict[int, Counter[int]] = {}
    for sampler in samplers:
        sampler.set_epoch(epoch)
        for number, batch in enumerate(sampler):
            found.setdefault(number, Counter()).update(batch)
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize(
    ("name", "last"), [*itertools.product(("shuffled", "blocks"), LAST), *((name, "pad") for name in orders(1))]
)
def test_the_records_of_each_global_batch_are_the_same_on_any_ranks_and_nodes(name: str, last: Any) -> None:
    n = 2 * B + 411
    options = {**orders(n)[name], "drop_last": last}
    alone = batches(ranks(n, B, 1, **options), 1)
    for count, nodes in CLUSTERS:
        plain = ranks(n, B // count, count, **options)
        near = ranks(n, B // count, count, **options, affinity="shard", nodes=nodes)
        assert batches(near, 1) == alone
        for ours, theirs in zip(near, plain, strict=True):
            assert len(ours) == len(theirs)
            for batch in range(len(ours)):
                assert len(ours.indices(batch, epoch=1)) == len(theirs.indices(batch, epoch=1))
                assert set(ours.positions(batch, epoch=1)) <= set(range(n))


@given(
    st.integers(1, 700),
    st.sampled_from([(2, 2), (4, 2), (8, 4), (6, 3)]),
    st.integers(1, 5),
    st.sampled_from(LAST),
    st.booleans(),
)
def test_small_and_uneven_epochs_are_divided_completely(
    n: int, cluster: tuple[int, int], batch_size: int, last: Any, by_blocks: bool
) -> None:
    count, nodes = cluster
    if last is True and n < count * batch_size:
        return
    options: dict[str, Any] = {"drop_last": last, "shuffle": fr.Blocks(records=7, window=3) if by_blocks else True}
    alone = batches(ranks(n, count * batch_size, 1, **options), 0)
    assert batches(ranks(n, batch_size, count, **options, affinity="shard", nodes=nodes), 0) == alone


@pytest.mark.parametrize("shuffle", [True, fr.Blocks(records=16, window=8)])
def test_a_run_goes_on_with_other_ranks_nodes_and_affinity(shuffle: Any) -> None:
    n, done = 5 * B + 100, 2
    options = {"shuffle": shuffle, "drop_last": "pad"}
    rest = batches(ranks(n, B, 1, **options), 0)[done:]
    state = ranks(n, B // 4, 4, **options, affinity="shard", nodes=2)[1].state_dict(batches_done=done)
    for count, more in ((8, {"affinity": "shard", "nodes": 4}), (2, {"affinity": "shard", "nodes": 2}), (3, {})):
        samplers = ranks(n, B // count, count, **options, **more)
        for sampler in samplers:
            sampler.load_state_dict(state)
        found: list[Counter[int]] = [Counter() for _ in rest]
        for sampler in samplers:
            for number, batch in enumerate(sampler):
                found[number].update(batch)
        assert found == rest


def test_spans_of_several_batches_are_the_batches() -> None:
    for sampler in ranks(3000, 25, 4, affinity="shard", nodes=2):
        run = sampler._begin()
        spans = list(sampler._spans(run, 7))
        found = np.concatenate([span.indices for span in spans])
        assert found.tolist() == list(itertools.chain.from_iterable(sampler.indices(b) for b in range(len(sampler))))


def test_every_epoch_gives_a_node_its_own_records() -> None:
    n, nodes = 40_000, 4
    data = range(n)
    own = Affinity(data, nodes).of(0, np.arange(n))
    assert np.bincount(own).tolist() == pytest.approx([n / nodes] * nodes, rel=0.02)
    samplers = ranks(n, 128, 8, affinity="shard", nodes=nodes)
    for epoch in range(2):
        for rank, sampler in enumerate(samplers):
            records = np.concatenate([sampler.indices(batch, epoch=epoch) for batch in range(len(sampler))])
            assert np.mean(own[records] == rank // 2) > 0.96


def test_shards_are_the_pieces_and_small_ones_stay_whole(tmp_path: Path) -> None:
    for number in range(130):
        arrays.write(
            tmp_path / f"{number:03}.frec", {"x": fr.FieldType("int64")}, *[{"x": record} for record in range(5)]
        )
    data = fr.FastRecordDataset(tmp_path)
    affinity = Affinity(data, 2)
    owners = affinity.of(3, np.arange(650)).reshape(130, 5)
    assert (owners == owners[:, :1]).all()
    assert np.bincount(owners[:, 0]).tolist() == [65, 65]
    assert (owners[:, 0] != affinity.of(4, np.arange(0, 650, 5))).any()
    view = data.subset(np.arange(649, -1, -1))
    assert (Affinity(view, 2).of(3, np.arange(650)) == owners.ravel()[::-1]).all()


@given(st.integers(1, 4), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_items_go_where_they_want_while_there_is_room(groups: int, shares: list[int], data: st.DataObject) -> None:
    items, nodes = sum(shares), len(shares)
    wish = st.lists(st.integers(0, nodes - 1), min_size=items, max_size=items)
    wanted = np.array([data.draw(wish) for _ in range(groups)], np.int64).reshape(groups, items)
    given_to = divide(wanted, np.array(shares))
    for own, found in zip(wanted.tolist(), given_to.tolist(), strict=True):
        room = list(shares)
        expected = [-1] * items
        for at, node in enumerate(own):
            if room[node]:
                expected[at] = node
                room[node] -= 1
        for at in range(items):
            if expected[at] < 0:
                expected[at] = next(node for node in range(nodes) if room[node])
                room[expected[at]] -= 1
        assert found == expected


@pytest.mark.parametrize(
    ("batch", "nodes", "shuffle"),
    [(256, 2, True), (1024, 8, True), (4096, 64, True), (256, 4, "blocks"), (3072, 4, "blocks")],
)
def test_what_goes_to_other_nodes_is_what_the_formula_says(batch: int, nodes: int, shuffle: Any) -> None:
    n = 1 << 17
    blocks = fr.Blocks(records=32, window=128) if shuffle == "blocks" else True
    sampler = FastRecordBatchSampler(
        range(n), batch // nodes, shuffle=blocks, rank=0, world_size=nodes, affinity="shard", nodes=nodes
    )
    whole, shares, positions = sampler._epoch(0), sampler._shares, np.arange(n)
    assert shares is not None
    assert shares.affinity is not None
    given_to, wanted = (f(shares.affinity, whole, positions) for f in (shares._nodes_of, shares._wanted))
    found = float(np.mean(given_to != wanted))
    expected = spill(batch, nodes)
    if shuffle == "blocks":
        expected *= _without_replacement(batch / 4096)
    assert found == pytest.approx(expected, rel=0.2)


def test_a_node_uses_what_its_ranks_take() -> None:
    n = 5000
    for options in orders(n).values():
        for nodes, more in ((1, {}), (2, {}), (2, {"affinity": "shard", "nodes": 2})):
            samplers = ranks(n, 24, 4, **options, **more)
            for node in range(nodes):
                order = NodeOrder(samplers[0], range(n), node, nodes=nodes)
                visits = order.visits(1)
                own = samplers[node * 4 // nodes : (node + 1) * 4 // nodes]
                for step in range(order.steps):
                    span = range(step * order.batches, min((step + 1) * order.batches, len(own[0])))
                    taken = {int(row) for sampler in own for batch in span for row in sampler.indices(batch, epoch=1)}
                    assert taken == set(visits.units[visits.last == step].tolist())
                assert (np.diff(visits.first) >= 0).all()
                assert (visits.first <= visits.last).all()


def test_blocks_come_whole() -> None:
    n = 4096
    sampler = FastRecordBatchSampler(range(n), 128, shuffle=fr.Blocks(records=16, window=16))
    visits = NodeOrder(sampler, range(n)).visits(0)
    for block in range(n // 16):
        assert len(set(visits.first[visits.units // 16 == block].tolist())) == 1


@pytest.mark.parametrize("shuffle", [False, fr.Blocks(records=16, window=16)])
def test_blocks_come_steadily_in_the_space_of_a_window(shuffle: bool | fr.Blocks) -> None:
    n, block, window = 4096, 16, 256
    sampler = FastRecordBatchSampler(range(n), 64, shuffle=shuffle)
    order = NodeOrder(sampler, range(n))
    for epoch in range(2):
        visits = order.visits(epoch)
        come, gone = (np.bincount(steps, minlength=order.steps) for steps in (visits.first, visits.last))
        assert come[1:].max() <= 64 + block
        # Records that are here in each step.
        here = np.cumsum(come) - np.r_[0, np.cumsum(gone)[:-1]]
        assert here.max() <= (window if shuffle else 64) + block


def test_arguments_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    make: dict[str, Any] = {"rank": 0, "world_size": 4}
    with pytest.raises(ValueError, match='affinity is "shard" or None'):
        FastRecordBatchSampler(range(9), 1, affinity="disk", **make)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="divisor of world_size"):
        FastRecordBatchSampler(range(9), 1, affinity="shard", nodes=3, **make)
    with pytest.raises(ValueError, match="give nodes="):
        FastRecordBatchSampler(range(9), 1, affinity="shard", **make)
    with pytest.raises(ValueError, match="nodes is for affinity"):
        FastRecordBatchSampler(range(9), 1, nodes=2, **make)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    sampler = FastRecordBatchSampler(range(9), 1, affinity="shard", **make)
    assert (sampler.nodes, sampler.affinity) == (2, "shard")
    assert "affinity='shard', nodes=2" in repr(sampler)
