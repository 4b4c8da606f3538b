"""`python -m fastrecord` is the command `fastrecord`."""

from fastrecord.cli import main

if __name__ == "__main__":
    main()
