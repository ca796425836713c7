"""Disentangled attention of He et al. 2021: by the formulas of the paper, once for all layers; its faults by name."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor

from tests.seeded import bundle_of, saved, seeded_model
from tests.tiny import edit_graph
from txport.bundles.graphs import read_ir
from txport.errors import ConfigError
from txport.models.architectures.deberta import PRESETS
from txport.models.ops import PlainOps
from txport.models.parts import Attention
from txport.models.parts.positions import vector_table
from txport.proof.bisect.culprit import bisect
from txport.targets.ports import MODEL

TINY, WIDE = PRESETS["deberta-tiny"], PRESETS["deberta-wide-tiny"]


def row_of(relative: int, reach: int, buckets: int) -> int:
    """The row of a relative position query - key, as published."""
    if buckets and abs(relative) > buckets // 2:
        own = buckets // 2
        far = math.ceil(math.log(abs(relative) / own) / math.log((reach - 1) / own) * (own - 1)) + own
        relative = int(math.copysign(far, relative))
    half = buckets or reach
    return min(max(relative + half, 0), 2 * half - 1)


def by_the_paper(part: Attention, x: Tensor, reach: int, buckets: int) -> Tensor:
    """Sums over each pair of tokens, one by one: (T, D) -> (T, N x H)."""
    query, key, value = (unit(x).view(len(x), -1, part.head_size) for unit in (part.query, part.key, part.value))
    both = part.core.disentangled
    vectors = both.positions.weight if both.positions.norm is None else both.positions.norm(both.positions.weight)
    (own,) = both._holder
    keys, queries = (unit(vectors).view(len(vectors), -1, part.head_size) for unit in (own.key, own.query))
    mixed = torch.zeros_like(query)
    for head in range(query.shape[1]):
        for i in range(len(x)):
            rows = [row_of(i - j, reach, buckets) for j in range(len(x))]
            scores = [
                query[i, head] @ key[j, head] + query[i, head] @ keys[row, head] + key[j, head] @ queries[row, head]
                for j, row in enumerate(rows)
            ]
            weights = (torch.stack(scores) / math.sqrt(3 * part.head_size)).softmax(0)
            mixed[i, head] = weights @ value[:, head]
    return mixed.flatten(1)


@pytest.mark.parametrize("config", [TINY, WIDE], ids=["shared", "own"])
@torch.no_grad()
def test_attention_is_the_papers(config: object) -> None:
    config = dataclasses.replace(config, reach=12)
    part = seeded_model(config).double().encoder[0].attention
    x = torch.randn(30, config.d_model, generator=torch.Generator().manual_seed(1)).double()
    found = PlainOps(torch.arange(30), None).attend(part, x[None], 0)[0]
    torch.testing.assert_close(found, by_the_paper(part, x, 12, config.position_buckets), rtol=0, atol=1e-12)


def test_a_table_has_the_published_row_of_each_distance() -> None:
    for reach, buckets in ((512, 256), (24, 8), (12, 0), (40, 6)):
        found = vector_table(reach, buckets, 600).tolist()
        assert found == [row_of(-distance, reach, buckets) for distance in range(-600, 601)]


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_indices_are_computed_once_and_no_vector_is_looked_up_for_a_pair(target: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, encoder_layers=4)
    bundle = bundle_of(saved(config, tmp_path / "model"), tmp_path / "bundle", target)
    graph = read_ir(bundle.file(MODEL)).graph
    found = Counter(node.op_type for node in graph)
    assert found["GatherElements"] == 2 * config.encoder_layers
    rows = [node for node in graph if node.op_type == "Gather" and "bucket" in str(node.inputs[0].name)]
    assert len(rows) == 1
    assert found["LayerNormalization"] == 2 + 2 * config.encoder_layers + 1


@pytest.mark.parametrize(
    ("name", "factor", "words"),
    [("positions.weight", 1.1, "vectors"), ("bucket", None, "relative positions")],
)
def test_a_fault_of_relative_positions_is_named(name: str, factor: float | None, words: str, tmp_path: Path) -> None:
    checkpoint = saved(dataclasses.replace(TINY, head="hidden"), tmp_path / "model")
    bundle = bundle_of(checkpoint, tmp_path / "bundle", "portable")

    def edit(model: ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if name in each.name)
        values = numpy_helper.to_array(tensor)
        values = np.roll(values, 1) if factor is None else values * np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    culprit = bisect(edit_graph(bundle.path, MODEL, edit), checkpoint)
    assert culprit is not None
    assert words in culprit.where + culprit.what


def test_settings_that_exclude_each_other_are_named() -> None:
    for changes, message in (
        ({"windows": (4, 4)}, "windows can't be combined with disentangled attention"),
        ({"buckets": 8}, "buckets can't be combined"),
        ({"reach": 5}, "reach must be above half of the position_buckets"),
        ({"kernel": 4}, "kernel must be an odd number of tokens, got 4"),
        ({"kernel_groups": 3}, "kernel_groups must divide d_model"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(TINY, **changes)
