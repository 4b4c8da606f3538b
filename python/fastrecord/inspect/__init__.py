"""What files, machines and training runs are like: `stats`, `browse`, `diff`, `doctor`, `bench`, `plan`.

Imports the loader and the layers below it. Only the command line imports it.
"""
