"""Which records make up batch k of an epoch: batch sampler, state, weighted draws, read-ahead.

Imports `dataset` and the layers below it. Does not read payloads.
"""
