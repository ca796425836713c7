"""Models whose weights are read where they are used: the same numbers as with all of them in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_config, tiny_model
from txport.checkpoints import checkpoint
from txport.checkpoints.checkpoint import Checkpoint, drawn, load_checkpoint, save_checkpoint
from txport.checkpoints.sources.source import read_safetensors
from txport.checkpoints.weights.plan import plan
from txport.checkpoints.weights.streamed import converted, filled, is_streamed, outline, streamed
from txport.errors import CheckpointError
from txport.models import architecture
from txport.models.model import Model
from txport.models.names import WEIGHTS
from txport.models.parts import Linear
from txport.models.rules import Settle, Transpose
from txport.proof.parity.cases import Draw, sides
from txport.proof.parity.exact import Exact, one_pass
from txport.proof.parity.truth.encoding import joined

SEEDS = range(4)
LAST_BITS = 16  # of the largest number


def said(model: Model) -> list[np.ndarray]:
    """What a model gives for two sources, a short one and a longer one."""
    draw = Draw(model.facts, np.random.default_rng(0))
    longest, room = sides(model.facts)
    sources = draw.sources(min(longest, 5), min(longest, 3))
    if model.facts.task == "encode":
        return list(joined(model, sources).values())
    return one_pass(model, sources, draw.targets(min(room, 3), 1)[: len(sources)])


@pytest.mark.parametrize("name", architecture.names())
def test_a_streamed_model_computes_what_one_in_memory_does(name: str) -> None:
    """In every type, to its last bits: some processors' kernels sum otherwise where a weight lies elsewhere in memory.

    A part that used a weight which it did not read would compute with NaN.
    """
    found = architecture.find(name)
    for seed in SEEDS:
        config = found.draw(np.random.default_rng(seed))
        shape = outline(found.build, config)
        assert all(each.is_meta for each in shape.parameters())
        assert not any(each.is_meta for each in shape.buffers())
        read = drawn(shape, seed)
        for dtype in (torch.float32, torch.float64):
            lazy = streamed(shape, read, dtype)
            whole = filled(shape, read, dtype)
            for one, other in zip(said(lazy), said(whole), strict=True):
                assert np.isfinite(one).all()
                bits = LAST_BITS * torch.finfo(dtype).eps * np.abs(other).max()
                np.testing.assert_allclose(one, other, rtol=0, atol=bits)
            assert all(each.isnan().all() for each in lazy.parameters())


def test_matrices_that_a_rule_turned_stay_turned() -> None:
    """To copy numbers in the order in which they lie takes a fifth of the time."""
    model = tiny_model(tiny_config())
    turned = {name: each.detach().t().contiguous().t() for name, each in model.named_parameters() if each.dim() == 2}
    shape = outline(lambda _: tiny_model(model.config), model.config)
    lazy = streamed(shape, lambda name: turned.get(name, model.get_parameter(name).detach()), torch.float64)
    strides = []
    for part in lazy.modules():
        if isinstance(part, Linear) and part.out_features > 1:
            part.register_forward_pre_hook(lambda part, _: strides.append(part.weight.stride()))
    for one, other in zip(said(lazy), said(converted(model, torch.float64)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=LAST_BITS * 2**-52 * np.abs(other).max())
    assert strides
    assert all(first == 1 < second for first, second in strides)


def test_a_copy_in_another_type_has_the_weights_of_the_first() -> None:
    """Half precision rounds them, and float64 after it keeps that."""
    model = tiny_model(tiny_config())
    lazy = streamed(outline(lambda _: tiny_model(model.config), model.config), model.get_parameter)
    half = converted(lazy, torch.half)
    whole = converted(model, torch.half)
    assert is_streamed(half)
    assert not is_streamed(whole)
    pairs = zip(said(converted(half, torch.float64)), said(converted(whole, torch.float64)), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_random_weights_are_drawn_in_any_order() -> None:
    shape = outline(architecture.find("gpt2").build, architecture.presets()["gpt2-tiny"])
    names = [name for name, _ in shape.named_parameters()]
    first = drawn(shape)
    again = drawn(shape)
    forwards = {name: first(name) for name in names}
    assert all(torch.equal(again(name), forwards[name]) for name in reversed(names))
    assert not torch.equal(drawn(shape, 1)(names[0]), forwards[names[0]])


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, at a time when every model is large."""
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 0)
    save_checkpoint(tmp_path / "mine", tiny_model(tiny_config(tied="none")))
    return tmp_path / "mine"


def test_a_large_checkpoint_is_the_same_model(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = load_checkpoint(str(large))
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 1 << 40)
    whole = load_checkpoint(str(large))
    assert is_streamed(lazy.model)
    assert not is_streamed(whole.model)
    assert (lazy.sha256, lazy.described) == (whole.sha256, whole.described)
    assert all(np.array_equal(*pair) for pair in zip(said(lazy.model), said(whole.model), strict=True))
    assert all(torch.equal(tensor, whole.tensor(name)) for name, tensor in lazy.tensors)
    state = lazy.in_memory().model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.model.state_dict().items())


def test_what_does_not_fit_is_told_of_a_large_checkpoint_too(large: Path) -> None:
    weights = load_file(large / WEIGHTS)
    del weights["encoder_norm.weight"]
    weights["decoder_norm.weight"][3] = torch.nan
    save_file(weights, large / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"decoder_norm\.weight holds NaN or infinity; missing encoder_norm"):
        load_checkpoint(str(large))


def test_a_large_model_is_saved_with_its_weights(large: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "again", load_checkpoint(str(large)).model)
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (large / WEIGHTS).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_16_bits_are_taken_as_they_are(dtype: torch.dtype, large: Path) -> None:
    stored = {name: each.to(dtype) for name, each in load_file(large / WEIGHTS).items()}
    save_file(stored, large / WEIGHTS)
    loaded: Checkpoint = load_checkpoint(str(large))
    assert all(torch.equal(tensor, stored[name].float()) for name, tensor in loaded.tensors)


def test_a_mode_that_changes_computations_leaves_weights_alone(tmp_path: Path) -> None:
    """PyTorch's own error is as large with weights that are read, from 16 bits and through rules, as with all there."""
    config = architecture.presets()["gpt2-tiny"]
    found = architecture.find("gpt2")
    model = checkpoint.random_checkpoint("gpt2-tiny").model
    save_file({name: each.detach().t().contiguous().bfloat16() if each.dim() == 2 else each.detach().bfloat16()
               for name, each in model.named_parameters()}, tmp_path / WEIGHTS)  # fmt: skip
    weights = read_safetensors(tmp_path / WEIGHTS)
    made = plan((Transpose(""), Settle()), weights.shapes, model)
    shape = outline(found.build, config)

    def read(name: str) -> torch.Tensor:
        return made.tensor(name, weights)

    errors = []
    for each in (streamed(shape, read), filled(shape, read)):
        exact = Exact.of(each, "fp32")
        errors.append([exact.own_error([[3, 4, 5]], [[3, 4, 5, 6]], draw) for draw in range(5)])
    assert max(errors[0]) < 3 * max(errors[1])  # without rounding alike: by what is drawn


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_weights_are_dropped_in_every_mode(precision: str) -> None:
    """A mode that rounds what functions give must not make whole tensors of parameters that hold one number."""
    shape = outline(architecture.find("gpt2").build, architecture.presets()["gpt2-tiny"])
    exact = Exact.of(streamed(shape, drawn(shape)), precision)
    for computation in (exact.own, exact.rounded):
        for draw in range(2):
            with computation.context(draw):
                one_pass(computation.model, [[3, 4, 5]], [[3, 4, 5, 6]])
            sizes = {each.untyped_storage().nbytes() for each in computation.model.parameters()}
            assert sizes == {next(computation.model.parameters()).element_size()}
