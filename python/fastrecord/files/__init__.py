"""Files made from files: merge, split, shuffle, compact, repair, extract, export, adding a field.

Imports `dataset`, `interchange`, `schema`, `checks` and the core. Writes through temporary files only. Decodes nothing.
"""
