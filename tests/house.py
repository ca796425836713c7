"""The size of the code and its habits: `python -m tests.house` prints a table, and exits with 1 beyond a limit.

Whoever makes a figure smaller lowers its limit; only a feature that needs lines raises it. `aim` is where it should get
to.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS: dict[str, tuple[int, int]] = {  # figure -> limit, aim
    "lines in txport/": (78_330, 44_000),
    "files in txport/": (496, 290),
    "lines in tests/": (61_299, 40_000),
    "comparisons of target or task": (11, 15),
    "Any per 1,000 lines": (10, 10),
    "words in README.md": (900, 900),
    "lines of a function, 90 of 100": (19, 19),
    "lines of the longest function": (60, 60),
}
COMPARED = re.compile(r"\b(?:target|task) [!=]= ")


def figures() -> dict[str, int]:
    """Return the figures of `LIMITS`."""
    code = [path.read_text(encoding="utf-8") for path in files("txport")]
    lines = sum(map(length, code))
    functions = sorted(size for text in code for size in sizes(text))
    return {
        "lines in txport/": lines,
        "files in txport/": len(code),
        "lines in tests/": sum(length(path.read_text(encoding="utf-8")) for path in files("tests")),
        "comparisons of target or task": sum(len(COMPARED.findall(text)) for text in code),
        "Any per 1,000 lines": round(1000 * sum(len(re.findall(r"\bAny\b", text)) for text in code) / lines),
        "words in README.md": len((ROOT / "README.md").read_text(encoding="utf-8").split()),
        "lines of a function, 90 of 100": functions[9 * len(functions) // 10],
        "lines of the longest function": functions[-1],
    }


def files(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]


def length(text: str) -> int:
    return text.count("\n")


def sizes(text: str) -> Iterator[int]:
    """Yield the number of lines of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1


if __name__ == "__main__":
    found = figures()
    rows = [f"{'':32}{'now':>8}{'limit':>8}{'aim':>8}"]
    for name, (limit, aim) in LIMITS.items():
        rows.append(f"{name:32}{found[name]:8}{limit:8}{aim:8}{'  beyond its limit' if found[name] > limit else ''}")
    sys.stdout.write("\n".join(rows) + "\n")
    sys.exit(any(found[name] > limit for name, (limit, _) in LIMITS.items()))
