"""One or more files as a torch data set: samples, views of parts, columns, labels, decoding and collating.

Imports `schema`, `checks` and the core. Knows no sampler, no loader and no command.
"""
