"""Files made from files: merge, split, shuffle, compact, repair, extract, and adding a field.

Imports `schema`, `checks` and the core. Writes through temporary files only. Decodes nothing.
"""
