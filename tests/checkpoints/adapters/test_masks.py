"""A module that masks tokens by large numbers is proven as strictly as one that does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.adapters import modules
from tests.tiny import edit_graph
from txport import adapters
from txport.api.release import load_checkpoint
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint
from txport.proof.masks import bound_of, cut_off, largest_of
from txport.proof.parity.check import check
from txport.proof.proven import prove, write
from txport.proof.verify.check import verify
from txport.targets.ports import DECODER, LOGITS

MASKED = (0, 1, 7)
LARGEST = torch.finfo(torch.float32).min
MASKS = (-1e4, LARGEST)


def masking(mask: float) -> adapters.Adapter:
    """Of a module without attention, which is traced in half the time; its cache holds what it has read."""

    def step(model: Any, inputs: adapters.StepInputs) -> Any:
        x = model.words(inputs.ids)
        read = torch.cat([inputs.past[0][0], x[:, None]], 2)
        never = torch.tensor([token in MASKED for token in range(modules.WORDS)])
        return (model.mix(x) @ model.words.weight.t()).masked_fill(never, mask), [(read, read)]

    caches = [adapters.Cache(1, modules.SIZE)]
    return adapters.causal(tokens=modules.TOKENS, width=modules.SIZE, caches=caches, step=step)


@pytest.fixture(scope="module", params=MASKS)
def masked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Checkpoint]:
    """A bundle that passes, and what it was made of."""
    checkpoint = load_checkpoint(modules.seeded(modules.Tagger), adapter=masking(request.param))
    bundle, sound = prove(write(checkpoint, tmp_path_factory.mktemp("masked")), checkpoint)
    assert sound.passed
    assert all(each.equal == each.rows for each in sound.tokens)
    return bundle, checkpoint


def test_masks_hide_no_error(masked: tuple[Bundle, Checkpoint], tmp_path: Path) -> None:
    """The logits are off by a thousandth, behind all that has weights or goes into a cache."""
    bundle, checkpoint = masked

    def alter(model: onnx.ModelProto) -> None:
        last = next(node for node in model.graph.node if LOGITS in node.output)
        last.output[0] = "exact"
        factor = onnx.numpy_helper.from_array(np.float32([1.001]), "factor")
        model.graph.initializer.append(factor)
        model.graph.node.append(onnx.helper.make_node("Mul", ["exact", "factor"], [LOGITS]))

    path = Path(shutil.copytree(bundle.path, tmp_path / "wrong"))
    wrong = edit_graph(path, DECODER, alter)
    assert not check(wrong, checkpoint, {"ort": "cpu"}).passed
    assert not verify(path).passed


def test_a_mask_that_is_missing_is_found(masked: tuple[Bundle, Checkpoint], tmp_path: Path) -> None:
    path = Path(shutil.copytree(masked[0].path, tmp_path / "bundle"))

    def alter(model: onnx.ModelProto) -> None:
        masks = [node for node in model.graph.node if node.op_type == "Where" and LOGITS in node.output]
        assert len(masks) == 1
        masks[0].op_type = "Identity"
        del masks[0].input[:2]

    edit_graph(path, DECODER, alter)
    found = verify(path)
    assert not found.passed
    assert found.wrong.startswith("logits")


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40), st.sampled_from([-1e4, -1e9, 1e9, LARGEST]))
def test_what_is_no_mask_stays_as_it_is(plain: list[float], mask: float) -> None:
    logits = np.array(plain, np.float32)
    largest = max(map(abs, plain))
    assert bound_of(logits) == np.inf
    assert largest_of(logits) == pytest.approx(largest)
    masked = np.append(logits, np.float32(mask))
    if largest == 0:
        return
    assert largest_of(masked) == pytest.approx(largest)
    bound = bound_of(masked)
    np.testing.assert_array_equal(cut_off(masked, bound)[:-1], logits)
    assert abs(cut_off(masked, bound)[-1]) == pytest.approx(2 * largest)
