"""What PyTorch computes behind the graphs of a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from txport.checkpoints.checkpoint import load_checkpoint
from txport.proof.parity.cases import Case
from txport.proof.parity.check import exact_of
from txport.proof.parity.replay import Reference
from txport.proof.proven import write
from txport.targets.ports import COUNT, IDS, STEP


def test_what_is_remembered_of_a_step_is_what_is_right(tmp_path: Path) -> None:
    """Only where nothing but the number of tokens differs, and never for what 8 bits make of the same model."""
    checkpoint = load_checkpoint("preset:gpt2-tiny")
    bundle = write(checkpoint, tmp_path, target="cpu", precision="int8")
    exact = exact_of(bundle, checkpoint)
    case = Case("", [[5, 6, 7], [8]], (2, 1))
    kept = Reference(exact, bundle.manifest, remembers=True)
    fresh = Reference(exact, bundle.manifest)
    runs = []
    exact.model.register_forward_pre_hook(lambda *_: runs.append(1))
    embedding = exact.model.get_submodule("target_embedding")
    embedding.register_forward_pre_hook(lambda *_: runs.append(1))
    for one, other in zip(kept.replay(case, 0), fresh.replay(case, 0), strict=True):
        assert all(np.array_equal(one.expected[name], other.expected[name]) for name in other.expected)
        assert (one.choices is None) == (one.role != STEP)
        for name in one.expected.keys() - {IDS}:
            own = kept.own(one, name)
            assert np.array_equal(own, fresh.own(other, name))
            assert name.endswith(("0.key", "0.value")) or not np.array_equal(own, one.expected[name])
    runs.clear()
    steps = [call for call in kept.replay(case, 0) if call.role == STEP]
    assert len({int(call.inputs[COUNT][0]) for call in steps}) == 2
    assert len(runs) == 1 + len(steps) // 2
