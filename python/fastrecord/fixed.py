"""`Fixed`: base class of objects that refuse to set attributes without an effect."""

from __future__ import annotations

from typing import Any


class Fixed:
    """Refuses to set a public attribute that its class does not declare as settable.

    Subclasses written by users may have attributes of their own.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        # The class that defines the attribute; for an unknown attribute, the object's class.
        owner = next((base for base in kind.__mro__ if name in base.__dict__), kind)
        offered = getattr(kind, name, None)
        foreign = not owner.__module__.startswith("fastrecord.")
        if not (name.startswith("_") or foreign or getattr(offered, "fset", None)):
            if hasattr(kind, f"set_{name}"):
                way_out = f"call set_{name}()"
            else:
                settable = [key for key in dir(kind) if getattr(getattr(kind, key), "fset", None)]
                way_out = "make another one" + (f", or set one of {', '.join(settable)}" if settable else "")
            raise AttributeError(f"{name!r} of a {kind.__name__} cannot be set: {way_out}")
        super().__setattr__(name, value)
