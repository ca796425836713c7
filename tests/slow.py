"""The test files that `make quick` leaves out: `pytest --durations=0 | python -m tests.slow` writes `slow.txt` anew."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
LONGEST = 1.5  # seconds of a file that is not left out, on one core of whatever machine has measured
DURATION = re.compile(r"^([0-9.]+)s (?:call|setup|teardown) +(tests/\S+?)::")


def slow_files(lines: Iterable[str]) -> list[str]:
    """Return the files whose tests take longer together, from the durations that pytest prints."""
    taken: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if found := DURATION.match(line):
            taken[found[2]] += float(found[1])
    return sorted(name for name, seconds in taken.items() if seconds > LONGEST)


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in slow_files(sys.stdin)), encoding="utf-8")
