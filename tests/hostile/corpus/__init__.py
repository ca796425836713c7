"""The attacks that people thought of, by what they attack."""

from __future__ import annotations

from tests.hostile.case import Case
from tests.hostile.corpus import (
    checkpoints,
    goldens,
    graphs,
    manifests,
    outputs,
    paths,
    reports,
    texts,
    tokenizers,
)

PARTS = (manifests, paths, graphs, goldens, checkpoints, tokenizers, texts, reports, outputs)


def cases() -> dict[str, Case]:
    """Every case by its name."""
    found = [case for part in PARTS for case in part.cases()]
    assert len({case.name for case in found}) == len(found)
    return {case.name: case for case in found}
