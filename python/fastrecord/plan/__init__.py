"""Predictions of training runs: `plan_training`, the model behind it, and published runs to check it.

`model` is arithmetic without tables, `tables` has the figures with their sources, `published` fits
and checks, `observed` reads measured runs. docs/plan.md has the formulas. Imports `diagnose` for
measured rates, and the ground floor; only `observed` reads a file, and nothing uses a GPU. Only
`plot` imports matplotlib, and late.
"""
