"""Training batches made by the core's threads: `FastRecordLoader` and its parts.

Imports `sampler`, `dataset`, `transforms` and the layers below. Does not know the trainer.
"""
