"""Folders, lists and pairs of images, data sets, and records of other formats, into files.

Imports `files`, `interchange`, `schema` and the core's writer. Does not know loaders.
"""
