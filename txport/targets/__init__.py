"""The targets of exports, one record and one file each.

A record names what belongs to it, which is imported when it is used.
"""

from __future__ import annotations

from txport.errors import UnsupportedError, quoted
from txport.targets.cpu import CPU
from txport.targets.cuda import CUDA
from txport.targets.portable import PORTABLE
from txport.targets.target import Target

TARGETS = {target.name: target for target in (PORTABLE, CPU, CUDA)}  # what `export` makes
FOREIGN = Target(name="foreign")


def target_of(name: str) -> Target:
    """Return the record of a target; raise `UnsupportedError` for an unknown name."""
    if name not in (*TARGETS, FOREIGN.name):  # a tuple: a wrong value may have no hash
        raise UnsupportedError(f"unknown target {quoted(name)}; supported: {', '.join(TARGETS)}")
    return TARGETS.get(name, FOREIGN)
