"""`lazily`: names of a package that are imported when they are first used (PEP 562).

So `import fastrecord` and the command line start fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazily(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: The package.
        names: Name -> module of the package that defines it, or a full name of one; "" if the name is itself a
            module.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        of = names[name]
        module = importlib.import_module(of if of.startswith("fastrecord.") else f"{package}.{of or name}")
        value = getattr(module, name) if of else module
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *names})
