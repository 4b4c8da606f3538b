"""`library`: imports a format's library, or says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastrecord.errors import Code


def library(module: str, extra: str, what: str) -> Any:
    """Import and return a module.

    Args:
        module: Its name, such as "h5py".
        extra: The extra of fastrecord that installs it, such as "hdf5".
        what: What needs it, such as "HDF5".

    Raises:
        FastRecordError: it is not installed, or does not work; the message has the pip line.
    """
    try:
        return import_module(module)
    except ImportError as err:
        raise Code.NO_LIBRARY.error(
            f"{what} needs the package {module.partition('.')[0]}: {err}: `pip install 'fastrecord[{extra}]'`"
        ) from err
