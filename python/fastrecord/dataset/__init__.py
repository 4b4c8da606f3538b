"""One or more files as a torch data set: samples, views, columns, labels, decoding and collating.

Imports `schema`, `checks` and the core. Does not know samplers, loaders or commands.
"""
