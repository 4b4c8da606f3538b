"""Measurements and checks of files, machines and mounts: `fastrecord bench`, `fastrecord doctor`.

Imports the loader and the layers below it. Only the command line imports it.
"""
