"""A cache that knows the future: what it brings and gives up (`plan`), and threads that do it (`ahead`).

Imports nothing of this package. Nothing here reads a data set or a store.
"""
