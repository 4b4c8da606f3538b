"""The long experiments behind docs/reliability.md: each breaks something on purpose, and checks what is left.

`python -m tests.torture --list` names them; `make torture` runs all of them and writes the page's table.
"""
