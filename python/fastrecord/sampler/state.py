"""`State`: a batch sampler's saved state, checked; and the checks of the sampler's arguments.

Does not compute batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fastrecord.checks import MOST, WORD, integer
from fastrecord.sampler.blocks import Blocks, check_shuffle

# What happens to a last global batch that is not full: True leaves it out. False lets the sampler choose.
Last: TypeAlias = Literal[True, "pad", "exact"]
DropLast: TypeAlias = Literal[False] | Last

STATE_VERSION = 5
_BLOCKS = ("block_records", "window_blocks")
_FILE = ("file_id", "commit", "records", "footer_crc")
# A state lists at most this many files; of more it has a digest, so that it stays small.
_LISTED = 256

Files: TypeAlias = list[Mapping[str, Any]] | Mapping[str, Any]


def files_of(snapshots: Sequence[Mapping[str, Any]]) -> Files:
    """Return the files of the data as a state has them.

    Args:
        snapshots: The snapshot of each file.

    Returns:
        `file_id`, `commit`, `records` and `footer_crc` of each; of more than 256, their number as
        `files`, and the SHA-256 of a line for each with these four, separated by spaces.
    """
    if len(snapshots) <= _LISTED:
        return [{key: file[key] for key in _FILE} for file in snapshots]
    lines = "".join(" ".join(str(file[key]) for key in _FILE) + "\n" for file in snapshots)
    return {"files": len(snapshots), "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def _are_files(files: Any) -> bool:
    if isinstance(files, Mapping):
        return type(files.get("files")) is int and isinstance(files.get("sha256"), str)
    return isinstance(files, list) and all(isinstance(file, Mapping) for file in files)


@dataclass(frozen=True, slots=True)
class State:
    """A state whose types and ranges have been checked."""

    seed: int
    epoch: int
    batches_done: int
    global_batch_size: int
    shuffle: bool | Blocks
    drop_last: Last
    records: int
    samples: int
    draw: Mapping[str, Any] | None
    view: str | None
    snapshots: Files

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> State:
        """Check a state.

        Raises:
            TypeError, ValueError: it is malformed or of another version.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a sampler's state is a dict, not {type(state).__name__}")
        version = state.get("version")
        if isinstance(version, bool) or version != STATE_VERSION:
            raise ValueError(
                f"the state has version {version!r}, but FastRecordBatchSampler reads {STATE_VERSION}: start without it"
            )
        missing = [name for name in (*cls.__slots__, *_BLOCKS) if name not in state]
        if missing:
            raise ValueError(f"the state has no {', '.join(missing)}: give one of FastRecordBatchSampler.state_dict()")
        snapshots = state["snapshots"]
        if not _are_files(snapshots):
            raise TypeError(f"state: snapshots is a list of dicts, or files and sha256 of many, not {snapshots!r:.200}")
        shuffle = check_shuffle("state: shuffle", state["shuffle"])
        blocks = [state[name] for name in _BLOCKS]
        if isinstance(shuffle, Blocks):
            records, window = (integer(f"state: {name}", state[name], 1, MOST) for name in _BLOCKS)
            shuffle = Blocks(records=records, window=window)
        elif blocks != [None, None]:
            raise ValueError(f'state: {" and ".join(_BLOCKS)} belong to shuffle="blocks", but shuffle is {shuffle}')
        draw, view = state["draw"], state["view"]
        if not (draw is None or isinstance(draw, Mapping)) or not (view is None or isinstance(view, str)):
            raise TypeError(f"state: draw is a dict or None, and view a str or None, not {draw!r} and {view!r}")
        lows = {"seed": 0, "epoch": 0, "batches_done": 0, "global_batch_size": 1, "records": 1, "samples": 1}
        return cls(
            **{name: integer(f"state: {name}", state[name], low, WORD) for name, low in lows.items()},
            shuffle=shuffle,
            drop_last=check_drop_last("state: drop_last", state["drop_last"]) or "exact",
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
            listed = [] if isinstance(self.snapshots, Mapping) else self.snapshots
            then_files, now_files = len(listed), len(snapshots)
            if isinstance(self.snapshots, Mapping):
                then_files = self.snapshots["files"]
            if then_files != now_files:
                raise ValueError(f"the state has {then_files} files, but the data have {now_files}: {advice}")
            if not listed and files_of(snapshots) != self.snapshots:
                raise ValueError(f"one of the {now_files:,} files of the data is not as the state has it: {advice}")
            for number, (then, now) in enumerate(zip(listed, snapshots, strict=False)):
                if any(then.get(key) != now[key] for key in _FILE):
                    raise ValueError(
                        f"file {number} of the data ({now.get('path', 'path unknown')}) is {_describe(now)}, but the "
                        f"state was saved with {_describe(then)}: {advice}"
                    )
            if self.view != view:
                whole = "all records of the files"
                ours, theirs = (whole if one is None else f"view {one} of them" for one in (self.view, view))
                raise ValueError(
                    f"the state has {ours}, but the data are {theirs}: make the same view (by the same subset, filter, "
                    "split and concatenation, in the same order), or start without the state"
                )
        if self.records != records:
            raise ValueError(f"the state has {self.records} records, but the data have {records}: {advice}")

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
    file_id, commit, records, footer_crc = (file.get(key) for key in _FILE)
    return f"{file_id} at commit {commit} with {records} records, footer {footer_crc}"


def check_drop_last(name: str, value: Any) -> DropLast:
    """Check and return a value of `drop_last`."""
    if not isinstance(value, bool) and value not in ("pad", "exact"):
        raise ValueError(f'{name} is True, False, "pad" or "exact", not {value!r}')
    chosen: DropLast = value
    return chosen
