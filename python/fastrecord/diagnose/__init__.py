"""Measurements of files and machines, and looks into files: `bench`, `doctor`, `stats`, `browse`, `diff`.

Imports the loader and the layers below it. Only the command line imports it.
"""
