"""The attacks that people thought of, by what they attack."""

from __future__ import annotations

from tests.hostile.case import Case
from tests.hostile.corpus import (
    audio,
    chats,
    checkpoints,
    folders,
    graphs,
    manifests,
    paths,
)

BUNDLES = (manifests, paths, graphs)
STRANGERS = (checkpoints, folders, audio, chats)
PARTS = (*BUNDLES, *STRANGERS)


def cases() -> dict[str, Case]:
    """Every case by its name."""
    found = [case for part in PARTS for case in part.cases()]
    assert len({case.name for case in found}) == len(found)
    return {case.name: case for case in found}
