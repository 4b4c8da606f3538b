"""Packing folders, lists and pairs of images into files: `fastrecord pack`.

Imports `files`, `schema` and the core's writer. Does not know data sets or loaders.
"""

from fastrecord.pack.images import pack_folder
from fastrecord.pack.pairs import pack_pairs

__all__ = ["pack_folder", "pack_pairs"]
