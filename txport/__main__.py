"""`python -m txport`: run the command line without the installed script on the path."""

from __future__ import annotations

from txport.cli import main

if __name__ == "__main__":  # false in the processes that a benchmark spawns
    main()
