"""Sources of the trainer's batches: the native loader, a DataLoader, or constants for the ladder.

Each source implements `Batches` of `base`; `open` chooses one by the configuration.
"""
