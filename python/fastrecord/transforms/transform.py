"""`Transform`: the base class of all that a list of transforms may have."""

from __future__ import annotations


class Transform:
    """Base class of geometries, operations, `Decode` and `ToFloat`."""
