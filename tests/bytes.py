"""The bytes that exports write, to compare two commits: `python -m tests.bytes > list`, and `diff` of two lists.

Each folder of tests/recorded/families and each tiny preset is exported without a proof, in every target and precision.
A line has the SHA-256 of a file and its place; pages and manifests are left out, since they hold words and versions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.recorded import FAMILIES, is_recorded, names
from tests.tiny import unproven
from txport.errors import TxportError
from txport.models import architecture
from txport.system.files import sha256
from txport.targets import TARGETS

LEFT_OUT = ("README.md", "txport.json")


def checkpoints() -> dict[str, str]:
    """A name for each checkpoint."""
    folders = {name: str(FAMILIES / name) for name in names() if is_recorded(name)}
    return folders | {name: f"preset:{name}" for name in architecture.presets() if name.endswith("tiny")}


def lines_of(name: str, checkpoint: str, target: str, precision: str) -> Iterator[str]:
    """Yield a line for each file of an export, or one that says why there is none."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "out")
        try:
            unproven(checkpoint, out, target=target, precision=precision)
        except TxportError as error:
            yield f"{'refused':64}  {name} {target} {precision}: {str(error).replace(checkpoint, name)}"
            return
        for path in sorted(path for path in out.rglob("*") if path.is_file() and path.name not in LEFT_OUT):
            yield f"{sha256(path)}  {name} {target} {precision} {path.relative_to(out)}"


if __name__ == "__main__":
    for each, source in checkpoints().items():
        if not sys.argv[1:] or each in sys.argv[1:]:
            for kind, target in TARGETS.items():
                for form in target.precisions:
                    sys.stdout.writelines(f"{line}\n" for line in lines_of(each, source, kind, form))
