"""Name the repository in the package: `python -m docs.addresses URL REF`, before `make dist` of a release.

An index shows README.md outside the repository, so its links become absolute. pyproject.toml gets the project's
addresses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")
NEXT = "[project.optional-dependencies]"


def absolute(readme: str, url: str, ref: str) -> str:
    """Return a page whose links to files name them at a tag or commit `ref` of the repository at `url`."""
    return RELATIVE.sub(
        lambda link: f"{link[1]}{link[2]}({url}/{'raw' if link[1] else 'blob'}/{ref}/{link[3]})", readme
    )


def named(project: str, url: str) -> str:
    """Return a pyproject.toml with the addresses of the project whose repository is at `url`."""
    pages = {
        "Source": "",
        "Issues": "/issues",
        "Documentation": "/tree/main/docs",
        "Changelog": "/blob/main/CHANGELOG.md",
    }
    urls = "".join(f'{name} = "{url}{page}"\n' for name, page in pages.items())
    before, found, after = project.partition(NEXT)
    assert found, f"pyproject.toml has no {NEXT}"
    return f"{before}[project.urls]\n{urls}\n{found}{after}"


if __name__ == "__main__":
    url, ref = sys.argv[1].rstrip("/"), sys.argv[2]
    for name, change in (
        ("README.md", lambda text: absolute(text, url, ref)),
        ("pyproject.toml", lambda text: named(text, url)),
    ):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
