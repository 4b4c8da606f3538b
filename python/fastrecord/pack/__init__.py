"""Folders, lists and pairs of images packed into files: `fastrecord pack`.

Imports `operations`, `schema` and the core's writer. Knows no data set and no loader.
"""

from fastrecord.pack.images import pack_folder
from fastrecord.pack.pairs import pack_pairs

__all__ = ["pack_folder", "pack_pairs"]
