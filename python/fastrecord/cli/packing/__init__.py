"""The subcommands that write records into new files, pack and import, and the options that they share.

It may import the modules of `cli` that serve all subcommands: `options` and `text`.
"""
