"""`python -m txport`: the command line, where the folder of installed scripts is not on the path."""

from __future__ import annotations

from txport.cli import main

if __name__ == "__main__":  # not in the processes that a benchmark starts
    main()
