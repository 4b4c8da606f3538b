"""Where the trainer's batches come from: the native loader, a DataLoader, or constants for the ladder.

Each source is a `Batches` of `base`; `open` chooses one by the configuration.
"""
