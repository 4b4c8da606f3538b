"""Which records make up batch k of an epoch: the batch sampler, its state, weighted draws and read-ahead.

Imports `dataset` and everything below it. Reads no payload.
"""
