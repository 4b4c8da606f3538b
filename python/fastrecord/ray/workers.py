"""`Workers`: how many tasks of a cluster run at a time, and what each is given."""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord.checks import integer


@dataclass(frozen=True, slots=True)
class Workers:
    """The tasks of a cluster.

    Attributes:
        count: How many run at a time; by default as many as the cluster's CPUs allow.
        cpus: CPUs that Ray sets aside for each. A task reads and recodes on several threads.

    Raises:
        TypeError, ValueError: `count` is not an int, or below 1.
    """

    count: int | None = None
    cpus: float = 1

    def __post_init__(self) -> None:
        if self.count is not None:
            integer("count", self.count, 1)
