"""Writes of several shards by several processes, which become part of a data set at once.

Imports `files.staging` and `files.manifest`, and what these import.
"""
