"""`State`: a batch sampler's saved state, checked; and the checks of the sampler's arguments.

Does not compute batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from fastrecord.checks import MOST, WORD, flag, integer

Shuffle: TypeAlias = bool | Literal["blocks"]
Tail = Literal["pad", "drop", "exact"]

TAILS: tuple[str, ...] = get_args(Tail)
STATE_VERSION = 3
_READABLE = (1, 2, STATE_VERSION)


@dataclass(frozen=True, slots=True)
class State:
    """A state whose types and ranges have been checked."""

    seed: int
    epoch: int
    batches_done: int
    global_batch_size: int
    shuffle: Shuffle
    block_records: int | None
    window_blocks: int | None
    tail: Tail
    records: int
    samples: int
    draw: Mapping[str, Any] | None
    view: str | None
    snapshots: list[Mapping[str, Any]]

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> State:
        """Check a state.

        Raises:
            TypeError, ValueError: it is malformed or of another version.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a sampler's state is a dict, not {type(state).__name__}")
        version = state.get("version")
        if isinstance(version, bool) or version not in _READABLE:
            raise ValueError(
                f"the state has version {version!r}, this fastrecord reads {_READABLE[0]} to {_READABLE[-1]}"
            )
        if version == 1:
            # States written before "blocks" existed have a flag.
            flag("state: shuffle", state.get("shuffle", False))
            state = {**state, "block_records": None, "window_blocks": None}
        if version < STATE_VERSION:
            # States written before views and draws existed lack these keys.
            state = {**state, "samples": state.get("records"), "draw": None, "view": None}
        missing = [name for name in cls.__slots__ if name not in state]
        if missing:
            raise ValueError(f"the state lacks {', '.join(missing)}: it is none of FastRecordBatchSampler.state_dict()")
        if state["tail"] not in TAILS:
            raise ValueError(f"state: tail is one of {', '.join(map(repr, TAILS))}, not {state['tail']!r}")
        snapshots = state["snapshots"]
        if not isinstance(snapshots, list) or not all(isinstance(file, Mapping) for file in snapshots):
            raise TypeError(f"state: snapshots is a list of dicts, not {snapshots!r}")
        kind = shuffle_kind("state: shuffle", state["shuffle"])
        draw, view = state["draw"], state["view"]
        if not (draw is None or isinstance(draw, Mapping)) or not (view is None or isinstance(view, str)):
            raise TypeError(f"state: draw is a dict and view a str, if there are any, not {draw!r} and {view!r}")
        names = ("block_records", "window_blocks")
        if kind != "blocks" and any(state[name] is not None for name in names):
            raise ValueError(f"state: {names[0]} and {names[1]} belong to shuffle='blocks', but shuffle is {kind}")
        group = [integer(f"state: {name}", state[name], 1, MOST) if kind == "blocks" else None for name in names]
        return cls(
            seed=integer("state: seed", state["seed"], 0, WORD),
            epoch=integer("state: epoch", state["epoch"], 0, WORD),
            batches_done=integer("state: batches_done", state["batches_done"], 0),
            global_batch_size=integer("state: global_batch_size", state["global_batch_size"], 1),
            shuffle=kind,
            block_records=group[0],
            window_blocks=group[1],
            tail=state["tail"],
            records=integer("state: records", state["records"], 1),
            samples=integer("state: samples", state["samples"], 1),
            draw=draw,
            view=view,
            snapshots=snapshots,
        )

    def check_data(self, snapshots: Sequence[Mapping[str, Any]], records: int, view: str | None) -> None:
        """Refuse data that differ from the state's data.

        Args:
            snapshots: The snapshot of each file; empty if unknown.
            records: Number of records.
            view: The fingerprint of a view of the files, None for all their records.

        Raises:
            ValueError: they differ.
        """
        advice = "open the data as they were then, or start without the state"
        # If one side does not know its files (a Subset does not), only the number of records is
        # compared.
        if self.snapshots and snapshots:
            then_files, now_files = len(self.snapshots), len(snapshots)
            if then_files != now_files:
                raise ValueError(f"the state is of {then_files} files, the data are of {now_files}: {advice}")
            for number, (then, now) in enumerate(zip(self.snapshots, snapshots, strict=True)):
                if any(then.get(key) != now[key] for key in ("file_id", "commit", "records")):
                    raise ValueError(
                        f"file {number} of the data ({now.get('path', 'path unknown')}) is {_describe(now)}, but the "
                        f"state was saved with {_describe(then)}: {advice}"
                    )
            if self.view != view:
                whole = "all records of the files"
                ours, theirs = (whole if one is None else f"view {one} of them" for one in (self.view, view))
                raise ValueError(
                    f"the state is of {ours}, the data are {theirs}: make the same view (by the same subset, filter, "
                    "split and concat, in the same order), or start without the state"
                )
        if self.records != records:
            raise ValueError(f"the state is of {self.records} records, the data have {records}: {advice}")

    def check_draw(self, draw: Mapping[str, Any] | None, samples: int) -> None:
        """Refuse to continue with another draw rule.

        Args:
            draw: `recipe()` of the sampler's rule; None without draws.
            samples: Positions of an epoch.

        Raises:
            ValueError: the rule or the number of samples differs.
        """
        if self.draw != draw:
            then, now = ((one or {}).get("kind", "neither weights nor balance") for one in (self.draw, draw))
            which = f"{then}, this sampler {now}" if then != now else f"other {then} than this sampler has"
            raise ValueError(f"the state was saved with {which}: make them equal, or start without the state")
        if self.samples != samples:
            raise ValueError(f"the state has num_samples={self.samples}, this sampler {samples}: make them equal")


def _describe(file: Mapping[str, Any]) -> str:
    return f"{file.get('file_id')} at commit {file.get('commit')} with {file.get('records')} records"


def shuffle_kind(name: str, value: Any) -> Shuffle:
    """Check and return a kind of shuffle."""
    if isinstance(value, str) and value == "blocks":
        return "blocks"
    if not isinstance(value, bool):
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"{name} is True, False or 'blocks', not {value!r}")
    return value
