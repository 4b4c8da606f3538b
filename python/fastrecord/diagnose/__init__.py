"""Measurements and checks of a file, a machine and its mounts: `fastrecord bench` and `fastrecord doctor`.

Imports the loader and everything below it. Only the command line imports it.
"""
