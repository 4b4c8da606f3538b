"""Writes of several shards by several processes, which become part of a data set at once.

Imports `operations.staging` and `operations.manifest`, and what these import.
"""
