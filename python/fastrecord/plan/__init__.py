"""Predictions of training runs: `plan_training`, the model behind it, and published runs to check it.

`model` is arithmetic without tables, `tables` has the figures with their sources, `published` fits
and checks. docs/plan.md has the formulas. Imports `diagnose` for measured rates, and the ground
floor; nothing here reads a file or uses a GPU. Only `plot` imports matplotlib, and late.
"""
