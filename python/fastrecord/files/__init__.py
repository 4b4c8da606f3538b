"""Files made from files: `merge`, `split`, `select`, `compact` and so on.

Imports the core's reader, writer and copier, `schema`, `store`, `dataset` and `interchange`. Each file serves one
command, or one step that several commands share.
"""

from typing import TYPE_CHECKING

from fastrecord.lazy import lazily

if TYPE_CHECKING:
    from fastrecord.files.copy_job import Converting as Converting
    from fastrecord.files.copy_job import Copying as Copying
    from fastrecord.files.copy_job import Replacing as Replacing
    from fastrecord.files.extraction import extract as extract
    from fastrecord.files.fields import add_field as add_field
    from fastrecord.files.fields import drop_field as drop_field
    from fastrecord.files.indexing import index as index
    from fastrecord.files.manifest import check_manifest as check_manifest
    from fastrecord.files.manifest import clean_manifest as clean_manifest
    from fastrecord.files.manifest import write_manifest as write_manifest
    from fastrecord.files.metadata import set_metadata as set_metadata
    from fastrecord.files.rewrite import compact as compact
    from fastrecord.files.rewrite import merge as merge
    from fastrecord.files.rewrite import select as select
    from fastrecord.files.rewrite import shuffle as shuffle
    from fastrecord.files.rewrite import split as split
    from fastrecord.files.salvage import repair as repair
    from fastrecord.files.transfer import copy as copy

_NAMES = {
    "Converting": "copy_job",
    "Copying": "copy_job",
    "Replacing": "copy_job",
    "add_field": "fields",
    "check_manifest": "manifest",
    "clean_manifest": "manifest",
    "compact": "rewrite",
    "copy": "transfer",
    "drop_field": "fields",
    "extract": "extraction",
    "index": "indexing",
    "merge": "rewrite",
    "repair": "salvage",
    "select": "rewrite",
    "set_metadata": "metadata",
    "shuffle": "rewrite",
    "split": "rewrite",
    "write_manifest": "manifest",
}
__all__ = sorted(_NAMES)
__getattr__, __dir__ = lazily(__name__, _NAMES)
