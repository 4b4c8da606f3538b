"""The long experiments of docs/reliability.md: each breaks something and checks what remains.

`python -m tests.torture --list` names them; `make torture` runs them and writes the page's table.
The folders: `core` runs Rust tests, `files` breaks files and kills their writers, `readers` reads
beside a writer, `loaders` ends loaders, and `training` kills training runs. `stores` kills what reads
through a cache or sends to a store, and `cluster` writes on Ray.
"""
