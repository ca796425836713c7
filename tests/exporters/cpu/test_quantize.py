"""What is chosen for a matrix in few bits does not depend on the machine that chooses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tests.tiny import tiny_config, tiny_model
from txport.api.release import load_checkpoint
from txport.bundles.forms import DYNAMIC, INVARIANT, Form, blocks_of, with_columns
from txport.bundles.manifest import Manifest
from txport.checkpoints.checkpoint import Checkpoint
from txport.exporters.cpu import choose
from txport.exporters.cpu.choose import choose_form
from txport.exporters.export import export_graphs
from txport.exporters.fused.quantize import ENDS, best_scales, dequantize, quantize, sums_of_squares
from txport.exporters.fused.rewrite import tables_of, tags_of
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.targets.ports import ENCODER, STEP

# Hundredths: of each block, two scales leave nearly the same error, and sums in float32 found the wrong one less.
CLOSE = [
    [39, 43, -91, 75, 13, 98, 1, 58, 28, 8, -85, 81, -86, -3, -30, 23],
    [55, -8, -51, -13, -86, 77, -50, 69, 83, 99, -20, -7, 71, -16, 66, -96],
    [-94, -17, -69, -59, -32, 42, 79, -71, 57, 18, 45, 51, 37, -26, 54, -56],
    [28, 67, 70, 39, -58, -18, 3, -56, -60, 38, -91, 86, -68, -36, 27, -16],
    [1, -34, -9, 12, 27, 12, 86, -77, -66, -40, 41, -29, 15, -66, -12, 88],
]


def squared_error(block: NDArray[np.float32], scale: np.float32) -> float:
    error = block - scale * np.clip(np.rint(block / scale), -8, 7)
    return math.fsum(float(each) ** 2 for each in error)


@pytest.mark.parametrize("hundredths", CLOSE)
def test_of_two_scales_that_are_nearly_as_good_the_better_is_taken(hundredths: list[int]) -> None:
    block = np.array(hundredths, np.float32) / np.float32(100)
    largest = block[np.abs(block).argmax()]
    best = min((np.float32(largest / end) for end in ENDS), key=lambda scale: squared_error(block, scale))
    assert best_scales(block[None], 4).tolist() == [best]
    assert best_scales(block[None, ::-1], 4).tolist() == [best]


@pytest.mark.parametrize(
    "form",
    [DYNAMIC, INVARIANT, with_columns((0, 3)), blocks_of(8, 16), blocks_of(4, 32), blocks_of(4, 16, zeros=True)],
    ids=Form.describe,
)
def test_zeros_alone_have_the_scale_0(form: Form) -> None:
    """The embedding of padding, which is a row of a projection: its logit is 0, not the rounding error of a sum."""
    matrix = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    matrix[2] = 0
    quantized = quantize(matrix, form)
    assert not quantized.scales[2].any()
    assert quantized.scales[[0, 1, *range(3, 8)]].all()
    assert not dequantize(quantized)[2].any()


def test_squares_are_summed_one_after_the_other_in_float64() -> None:
    values = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    expected = []
    for row in values.astype(np.float64):
        total = 0.0
        for value in row:
            total += value * value
        expected.append(total)
    assert sums_of_squares(values).tolist() == expected


@pytest.mark.parametrize("tied", ["none", "target", "all"])
def test_maps_and_tables_are_known_by_their_modules(tied: str) -> None:
    model = tiny_model(tiny_config(tied=tied))
    tags = tags_of(model)
    tables = tables_of(model)
    untied = {"source_embedding.tokens.weight", "target_embedding.tokens.weight"}
    expected = {"none": untied, "target": {"source_embedding.tokens.weight", "projection.weight"}}
    assert tables == expected.get(tied, {"projection.weight"})
    assert tags["projection.weight"] == "projection"
    assert tags["decoder.0.cross_attention.key.weight"] == "cross_key"
    assert tags["decoder.0.attention.key.weight"] == "key"
    assert tags["encoder.0.feed_forward.outer.weight"] == "ffn_out"
    assert {name.removesuffix(".weight") for name in tags} == {
        name for name, module in model.named_modules() if hasattr(module, "tag")
    }


def test_space_counts_in_the_encoder_only_where_it_is_said() -> None:
    how: dict[str, Any] = {"precision": "int4", "rows": None}
    assert choose_form((8, 64), **how, role=ENCODER, small=True) == blocks_of(4, 32, zeros=True)
    assert choose_form((8, 64), **how, role=ENCODER) == INVARIANT
    assert choose_form((8, 64), **how, role=STEP) == blocks_of(4, 32, zeros=True)
    assert choose_form((8, 48), **how, role=STEP) == blocks_of(4, 16, zeros=True)
    assert choose_form((8, 60), **how, role=STEP) == INVARIANT


def test_blocks_of_large_causal_models_have_more_inputs() -> None:
    how: dict[str, Any] = {"precision": "int8", "rows": None, "role": STEP, "causal": True}
    assert choose_form((8, 64), **how, weights=choose.FINE) == blocks_of(8, 16)
    assert choose_form((8, 64), **how, weights=choose.FINE + 1) == blocks_of(8, 32)
    assert choose_form((8, 48), **how, weights=choose.FINE + 1) == blocks_of(8, 16)


def test_int4_of_a_causal_model_has_eight_bits_where_they_gain_most(tmp_path: Path) -> None:
    """The matrices of attention and logits, and the ends of half of the feed-forward layers."""
    shape: dict[str, Any] = {"decoder_layers": 16, "d_model": 32, "heads": 2, "feed_forward": 64}
    checkpoint = Checkpoint(
        "toy", GPT2(GPT2Config(vocab_size=64, pad_id=0, eos_id=1, max_length=16, **shape)), "0" * 64
    )
    forms = export_graphs(checkpoint, tmp_path, target="cpu", precision="int4").forms
    eight = {name.removesuffix(".weight") for name, form in forms.items() if form == blocks_of(8, 32)}
    ends = {f"decoder.{at}.feed_forward.outer" for at in (0, 1, 4, 7, 10, 13, 14, 15)}
    packed = {f"decoder.{at}.attention.{part}" for at in range(16) for part in ("query", "key", "value")}
    outputs = {f"decoder.{at}.attention.output" for at in range(16)}
    assert eight == {*ends, *packed, *outputs, "projection"}
    assert {form for form in forms.values() if form.bits != 8} == {blocks_of(4, 32, zeros=True)}


@given(
    arrays(
        np.float32,
        (3, 2, 16),
        elements=st.floats(-1e3, 1e3, width=32).filter(lambda each: each == 0 or abs(each) > 1e-3),
    )
)
def test_blocks_with_zero_points_move_no_weight_by_more_than_a_step(blocks: NDArray[np.float32]) -> None:
    matrix = blocks.reshape(3, 32)
    made = quantize(matrix, blocks_of(4, 16, zeros=True))
    assert made.zeros is not None
    moved = np.abs(dequantize(made) - matrix).reshape(blocks.shape)
    assert np.all(moved <= made.scales[..., None] * 1.001)
    assert np.all(dequantize(made)[matrix == 0] == 0)


def test_zero_points_round_weights_with_less_error() -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    forms = (blocks_of(4, 16), blocks_of(4, 16, zeros=True))
    symmetric, shifted = (np.square(dequantize(quantize(matrix, form)) - matrix).sum() for form in forms)
    assert shifted < 0.9 * symmetric


def test_one_row_takes_blocks_unless_weights_are_streamed_from_memory() -> None:
    how: dict[str, Any] = {"precision": "int8", "rows": 1, "role": STEP}
    assert choose_form((8, 256), **how) == blocks_of(8, 128)
    assert choose_form((8, 256), **how, weights=choose.STREAMED + 1) == DYNAMIC


@pytest.mark.parametrize(("most", "of_step"), [(10**9, "blocks"), (1, "rows")])
def test_streaming_is_a_matter_of_all_weights_of_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int, of_step: str
) -> None:
    monkeypatch.setattr(choose, "STREAMED", most)
    manifest = export_graphs(load_checkpoint("preset:tiny"), tmp_path, target="cpu", precision="int8", rows=1)
    kinds = {stored.form.kind for stored in manifest.weights.values() if stored.form and stored.is_quantised}
    assert kinds == {"dynamic", of_step}  # the encoder's, and those of the step with its table


@pytest.mark.parametrize("streamed", [10**9, 1])
def test_few_rows_of_a_causal_model_have_the_forms_of_any_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, streamed: int
) -> None:
    monkeypatch.setattr(choose, "STREAMED", streamed)
    checkpoint = load_checkpoint("preset:llama-tiny")

    def exported(rows: int | None) -> Manifest:
        folder = tmp_path / str(rows)
        folder.mkdir()
        return export_graphs(checkpoint, folder, target="cpu", precision="int8", rows=rows)

    usual, one, two, three = map(exported, (None, 1, 2, 3))
    assert one == two == usual
    assert (usual.rows, three.rows) == (None, 3)
    assert {form.kind for form in one.forms.values()} == {"blocks"}
