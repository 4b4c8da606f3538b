"""Batches for a training step, made by the core's threads: `FastRecordLoader` and its parts.

Imports `sampler`, `dataset`, `transforms` and everything below them. Knows no trainer.
"""
