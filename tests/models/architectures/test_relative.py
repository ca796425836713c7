"""Relative positions of Shaw et al. 2018: by the paper's formulas, in every form, and in place on the cpu target."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from tests.seeded import bundle_of, saved, seeded_model
from txport.exporters.check import operators
from txport.exporters.cpu.modules import CpuEncoder, CpuStep
from txport.models.architectures.relative import PRESETS
from txport.models.ops import PlainOps, causal_mask
from txport.models.parts import Attention, additive
from txport.targets.ports import ALIGN, CAPACITY, COUNT, INPUT_IDS, LOGITS, PAST_LENGTHS, SOURCE_LENGTHS, STEP

TINY = PRESETS["relative-tiny"]


def by_the_paper(part: Attention, x: Tensor) -> Tensor:
    """Sums over each pair of tokens, one by one: (T, D) -> (T, N x H), each token seeing those before it."""
    query, key, value = (unit(x).view(len(x), -1, part.head_size) for unit in (part.query, part.key, part.value))
    keys = part.core.relative_keys
    values = part.core.relative_values
    mixed = torch.zeros_like(query)
    for head in range(query.shape[1]):
        for i in range(len(x)):
            near = [max(-keys.farthest, min(keys.farthest, j - i)) + keys.farthest for j in range(i + 1)]
            scores = torch.stack([query[i, head] @ (key[j, head] + keys.weight[near[j]]) for j in range(i + 1)])
            weights = (scores / math.sqrt(part.head_size)).softmax(0)
            for j in range(i + 1):
                vector = value[j, head] if values is None else value[j, head] + values.weight[near[j]]
                mixed[i, head] += weights[j] * vector
    return mixed.flatten(1)


@pytest.mark.parametrize("relative_values", [True, False])
@torch.no_grad()
def test_attention_is_the_papers(relative_values: bool) -> None:
    config = dataclasses.replace(TINY, farthest=3, relative_values=relative_values)
    part = seeded_model(config).double().decoder[0].attention
    x = torch.randn(9, config.d_model, generator=torch.Generator().manual_seed(1)).double()
    ops = PlainOps(torch.arange(9), additive(causal_mask(9, 0, x.device), x.dtype))
    torch.testing.assert_close(ops.attend(part, x[None], 0)[0], by_the_paper(part, x), rtol=0, atol=1e-12)


@torch.no_grad()
def test_positions_follow_from_distances_alone() -> None:
    model = seeded_model(dataclasses.replace(TINY, decoder_layers=1)).double()
    tokens = torch.full((1, 30), 5)
    part = model.decoder[0].attention
    states = model.target_embedding(tokens, PlainOps(torch.arange(30), torch.zeros(30, 30).double()))
    assert torch.equal(states[0, 0], states[0, 29])  # nothing is added to embeddings
    ops = PlainOps(torch.arange(30), additive(causal_mask(30, 0, states.device), states.dtype))
    mixed = ops.attend(part, states, 0)[0]
    assert (mixed[0] - mixed[1]).abs().max() > 1e-3


def test_caches_are_written_in_place_where_input_and_output_are_one(tmp_path: Path) -> None:
    checkpoint = saved(TINY, tmp_path / "model")
    bundle = bundle_of(checkpoint, tmp_path / "bundle")
    found = operators(bundle.file(STEP))
    assert found["ScatterND"] == 2 * TINY.decoder_layers
    assert found["com.microsoft.MultiHeadAttention"] == TINY.decoder_layers
    graph = bundle.manifest.graphs[STEP]
    facts = checkpoint.facts
    rng = np.random.default_rng(0)
    rows = 3
    room = 12
    source = torch.from_numpy(rng.integers(3, 60, (rows, 7)))
    lengths = torch.tensor([7, 3, 5], dtype=torch.int32)
    past = np.array([4, 0, 11], np.int32)
    with torch.no_grad():
        cross = [each.numpy() for each in CpuEncoder(checkpoint.model)(source, lengths)]
    own = [rng.standard_normal(each.shape(rows, room)).astype(np.float32) for each in facts.owned("row")]
    before = [each.copy() for each in own]
    inputs: dict[str, Any] = {
        INPUT_IDS: rng.integers(3, 60, (rows, 1)),
        PAST_LENGTHS: past,
        CAPACITY: np.array([room], np.int32),
        SOURCE_LENGTHS: lengths.numpy(),
        **dict(zip(graph.past("source").values(), cross, strict=True)),
        ALIGN: np.array([False]),
        COUNT: np.array([0]),
    }
    expected = reference(checkpoint.model, inputs, cross, before)
    logits = run_in_place(bundle.file(STEP), graph, inputs, own)
    np.testing.assert_allclose(logits, expected[0], rtol=0, atol=1e-5)
    for cache, wanted, old in zip(own, expected[1:], before, strict=True):
        np.testing.assert_allclose(cache, wanted, rtol=0, atol=1e-5)
        touched = (cache != old).any(axis=(1, 3))  # (R, M)
        assert np.array_equal(touched, np.arange(room) == past[:, None])


def reference(model: Any, inputs: dict[str, Any], cross: list[Any], own: list[Any]) -> list[Any]:
    """The step in PyTorch: logits, and the caches after it."""
    names = (INPUT_IDS, PAST_LENGTHS, CAPACITY, SOURCE_LENGTHS)
    given = [*(inputs[name] for name in names), *cross, *own]
    with torch.no_grad():
        logits, *rest = CpuStep(model)(*map(torch.from_numpy, given))
    return [each.numpy() for each in (logits, *rest[: len(own)])]


def run_in_place(file: Path, graph: Any, inputs: dict[str, Any], own: list[Any]) -> Any:
    """Run the step with each cache bound as input and as output; -> logits."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for name, a in inputs.items()}
    caches = [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in own]
    io = session.io_binding()
    for name, value in (*values.items(), *zip(graph.past("row").values(), caches, strict=True)):
        io.bind_ortvalue_input(name, value)
    for name, value in zip(graph.present("row").values(), caches, strict=True):
        io.bind_ortvalue_output(name, value)
    bound = {*graph.present("row").values()}
    for name in (port.name for port in graph.outputs if port.name not in bound):
        io.bind_output(name)
    session.run_with_iobinding(io)
    order = [*graph.present("row").values(), *(port.name for port in graph.outputs if port.name not in bound)]
    outputs = dict(zip(order, io.get_outputs(), strict=True))
    return outputs[LOGITS].numpy()
