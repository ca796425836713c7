"""The Llama family: every variant exports and is proven on two targets, with logits and samples of transformers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.runtimes.driven import ENGINES
from tests.seeded import bundle_of, proven, saved, seeded_model
from tests.tiny import unproven
from txport import runtimes
from txport.api import release
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import ConfigError, UnsupportedError
from txport.exporters.check import operators
from txport.models import architecture
from txport.models.architectures.llama import PRESETS, Llama, LlamaConfig, hugging_face
from txport.models.ops import PlainOps
from txport.models.parts import DotProduct, additive
from txport.proof.parity.check import check
from txport.runtimes.base import ContinuousRuntime
from txport.runtimes.pytorch import TorchRuntime
from txport.search.continuous import Scheduler
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.targets.ports import STEP

SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "d_model": 32,
    "heads": 4,
    "decoder_layers": 2,
    "feed_forward": 48,
    "max_length": 32,
}


def checkpoint(folder: Path, config: LlamaConfig) -> Path:
    """Random weights with biases and norms that count."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Llama(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    save_checkpoint(folder, model)
    return folder


def became(bundle: Bundle, role: str) -> Counter[str]:
    return operators(bundle.file(role))


@pytest.mark.parametrize("head_norm", [False, True])
def test_parts_become_the_fused_operators(head_norm: bool, tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, key_heads=2, head_size=16, head_norm=head_norm, tied=True)
    bundle = unproven(checkpoint(tmp_path / "checkpoint", config), tmp_path / "bundle", target="cpu")
    counts = became(bundle, STEP)
    assert counts["com.microsoft.GroupQueryAttention"] == config.decoder_layers
    assert not {"MatMul", "Softmax", "Pow", "Sqrt", "Cos", "Sin", "Transpose"} & counts.keys()
    assert bundle.manifest.passes[STEP]["pack projections"] == 2 * config.decoder_layers


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"heads": 3}, "heads must divide d_model, got 3 for 32"),
        ({"heads": 32, "key_heads": 32}, "rotary positions need an even head_size, got 1"),
        ({"key_heads": 3}, "key_heads must divide heads, got 3 for 4"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be above 0"),
        ({"eos_ids": ()}, "eos_ids must name at least one token"),
        ({"eos_ids": (32,)}, r"eos_ids\[0\] must lie in the model's vocabulary of 32, got 32"),
        ({"rotary_scaling": "linear", "rotary_factor": 0.5}, "needs a rotary_factor of at least 1, got 0.5"),
        ({"rotary_scaling": "yarn"}, "needs the rotary_original_length that the model was trained for"),
        ({"rotary_scaling": "dynamic", "rotary_original_length": 16}, "max_length must be at most 16, got 32"),
        ({"rotary_scaling": "llama3", "rotary_original_length": 9, "rotary_low": 5.0}, "rotary_low must be below"),
        ({"rotary_scaling": "yarn", "rotary_original_length": 9, "rotary_slow": 64.0}, "rotary_slow must be in"),
        ({"rotary_scaling": "longrope", "rotary_original_length": 9}, "rotary_divisors must be 4 positive numbers"),
        ({"rotary_divisors": (1.0,)}, "rotary_divisors must be 0 positive numbers for rotary_scaling 'none', got 1"),
        (
            {"rotary_local_layers": (0, 2)},
            r"rotary_local_layers must be numbers of layers from 0 to 1 in",
        ),
        ({"rotary_local_layers": (1, 0)}, "rotary_local_layers must be numbers of layers"),
        ({"unturned_layers": (2,)}, "unturned_layers must be numbers of layers from 0 to 1 in order"),
        ({"unturned_layers": (1,), "rotary_local_layers": (1,)}, "must have no layer in common, got 1 in both"),
        ({"windows": (4,)}, r"windows must be none, or 2 numbers from 0 to \d+, one a layer, got \[4\]"),
        ({"windows": (4, -1)}, "windows must be none, or 2 numbers from 0 to"),
        ({"windows": (4, 1 << 21)}, "windows must be none, or 2 numbers from 0 to"),
        ({"attention_cap": -1.0}, "attention_cap must be at least 0"),
        (
            {"rotary_factor": 8.0},
            "rotary_factor is for rotary_scaling 'linear' or 'llama3' or 'longrope' or 'yarn', got 8.0",
        ),
        (
            {"rotary_scaling": "yarn", "rotary_original_length": 9, "rotary_low": 2.0},
            "rotary_low is for rotary_scaling",
        ),
        ({"rotary_scaling": "linear", "rotary_original_length": 9}, "got 9 for 'linear'"),
        ({"both_ways": True}, "both_ways is for other heads than 'text', got True"),
        ({"text_length": 9}, "text_length is for other heads than 'text', got 9"),
        ({"head": "hidden", "tied": True}, "tied is for other heads than 'hidden', got True"),
        ({"head": "hidden", "text_length": 99}, "text_length must be at most max_length 32, got 99"),
        ({"labels": ("a",)}, "labels is for other heads than 'text'"),
        ({"head": "labels"}, "the head 'labels' needs labels that differ from each other"),
        ({"head": "labels", "labels": ("a", "a")}, "the head 'labels' needs labels that differ from each other"),
        ({"alibi_factor": 0.5}, "alibi_factor is for models with alibi, got 0.5"),
        ({"alibi": 8.0, "attention_cap": 9.0}, "attention_cap is for models without alibi, got 9.0"),
        ({"alibi": 8.0, "alibi_factor": 0.5, "windows": (4, 0)}, "alibi_factor is for models without windows"),
        ({"expert_size": 8}, "expert_size is for models with experts, got 8"),
        ({"experts": 2, "experts_per_token": 3, "expert_size": 8}, "must be from 1 to the 2 experts, got 3"),
        ({"experts": 2, "experts_per_token": 1}, "experts need an expert_size above 0"),
        ({"experts": 2, "experts_per_token": 1, "expert_size": 8, "gated": False}, "and are gated"),
        ({"gate_limit": 2.0, "gated": False}, "gate_limit is for gated models, got 2.0"),
        ({"rotary_truncate": False}, "rotary_truncate is for rotary_scaling 'yarn', got False for 'none'"),
        ({"activation": "swish"}, "activation must be one of silu, gelu, gelu_tanh, relu, relu2"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LlamaConfig(**{**SMALL, **changes})


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_an_expert_that_no_token_takes_is_not_computed(target: str, tmp_path: Path) -> None:
    """Its products are beyond fp32, and times 0 they would be no numbers."""
    config = dataclasses.replace(PRESETS["llama-experts-tiny"], experts=9, shared_expert_size=0)
    model = load_checkpoint(str(checkpoint(tmp_path / "sound", config))).model
    with torch.no_grad():
        for layer in model.decoder:
            layer.feed_forward.router.weight[4] = 0
            layer.feed_forward.router.weight[5:] = -layer.feed_forward.router.weight[:4]  # so one of a pair is above 0
            for weight in layer.feed_forward.experts[4].parameters():
                weight.fill_(1e30)
    save_checkpoint(tmp_path / "checkpoint", model)
    bundle = unproven(tmp_path / "checkpoint", tmp_path / "bundle", target=target)
    runtime = runtimes.load("ort", bundle)
    state = runtime.start(np.array([[5, 9, 3, 7], [8, 2, 0, 0]]), np.array([4, 2]), max_length=9)
    scores, _ = runtime.step(np.array([7, 2]), state)
    assert np.isfinite(scores.values).all()


def test_sinks_take_what_keys_leave() -> None:
    """The weights are those of a softmax with one more score; a row whose keys are all masked is 0."""
    core = DotProduct(2, 1, 0.5, sinks=True).double()
    assert core.sinks is not None
    torch.nn.init.normal_(core.sinks)
    query, key, value = (torch.randn(1, heads, 3, 4, dtype=torch.float64) for heads in (2, 1, 1))
    mask = additive(torch.tensor([[True, False, True], [True, True, True], [False, False, False]]), torch.float64)
    with torch.no_grad():
        mixed, weights = core(query, key, value, mask)
        scores = (query @ key.transpose(2, 3) * 0.5 + mask).exp()
        expected = scores / (scores.sum(-1, keepdim=True) + core.sinks.exp())
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    assert not mixed[:, :, 2].any()


def test_a_head_size_that_no_kernel_turns_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "checkpoint", LlamaConfig(**SMALL))
    with pytest.raises(UnsupportedError, match="a multiple of 16 for rotary positions, this model's is 8"):
        release.export(source, tmp_path / "bundle", target="cpu")
    unproven(source, tmp_path / "portable")


@pytest.mark.parametrize(
    ("changes", "gain"),
    [
        ({}, 1.0),
        ({"attention_scale": 1.0}, 0.25),
        ({"attention_scale": 0.5}, 0.5),
        ({"attention_scale": 0.1}, 1.0),
        ({"attention_scale": 1.0, "head_norm": True}, 1.0),  # which undoes the size of what it normalises
    ],
)
def test_queries_begin_smaller_where_scores_would_be_larger(changes: dict[str, Any], gain: float) -> None:
    model = Llama(LlamaConfig(**SMALL, head_size=16, **changes))
    assert model.gain("decoder.0.attention.query.weight") == gain
    assert model.gain("decoder.0.attention.key.weight") == 1.0


WINDOWED: dict[str, Any] = {**SMALL, "head_size": 16, "windows": (3, 0), "unturned_layers": (1,)}


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_a_window_becomes_that_of_the_fused_operator(cap: float, tmp_path: Path) -> None:
    config = LlamaConfig(**WINDOWED, key_heads=2, attention_cap=cap)
    bundle = unproven(checkpoint(tmp_path / "checkpoint", config), tmp_path / "bundle", target="cpu")
    nodes = [each for each in onnx.load(bundle.file(STEP)).graph.node if each.op_type == "GroupQueryAttention"]
    said = [{each.name: each.i for each in node.attribute} for node in nodes]
    assert [each.get("local_window_size") for each in said] == [3, None]
    assert [each.get("do_rotary") for each in said] == [1, None]
    assert not {"MatMul", "Softmax", "Where", "Less"} & became(bundle, STEP).keys()


@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({}, {"model_type": "llama"}),
        ({"windows": (3, 3)}, {"model_type": "mistral", "sliding_window": 3}),
        (
            {"windows": (3, 0)},
            {
                "model_type": "qwen2",
                "sliding_window": 3,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
        ),
        ({"unturned_layers": (1,)}, {"model_type": "smollm3", "no_rope_layers": [1, 0]}),
        (
            {"unturned_layers": (1,), "windows": (5, 3)},  # of several sizes, the largest is told
            {
                "model_type": "smollm3",
                "no_rope_layers": [1, 0],
                "sliding_window": 5,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"] * 2,
            },
        ),
    ],
)
def test_windows_are_published_as_the_model_that_has_them(changes: dict[str, Any], published: dict[str, Any]) -> None:
    found = hugging_face(LlamaConfig(**SMALL, **changes))
    usual = hugging_face(LlamaConfig(**SMALL)).keys() - {"model_type"}
    assert {name: value for name, value in found.items() if name not in {*usual}} == published


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_window_hides_what_lies_further_back_and_nothing_else(size: int) -> None:
    """Of one layer, the last logits change with the token that is the first in the window, not with the one before."""
    config = LlamaConfig(**{**SMALL, "decoder_layers": 1}, windows=(size,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Llama(config).double().eval()
    ids = torch.arange(3, 14)
    padding = 4
    rows = ids.repeat(3, 1)
    rows[1, -size] += 1
    rows[2, -size - 1] += 1
    mask = torch.ones_like(rows).bool()
    with torch.no_grad():
        found = model.extend(rows, mask, torch.arange(11).expand(rows.shape), model.empty_state(3)).logits[:, -1]
        filled = torch.cat([torch.zeros(3, padding).long(), rows], 1)
        seen = torch.cat([torch.zeros(3, padding).bool(), mask], 1)
        places = (seen.cumsum(1) - 1).clamp(min=0)
        padded = model.extend(filled, seen, places, model.empty_state(3)).logits[:, -1]
    torch.testing.assert_close(found, padded, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-12)
    assert float((found[0] - found[1]).abs().max()) > 1e-6


@pytest.mark.parametrize("target", ENGINES)
def test_searches_beyond_a_window_find_what_pytorch_finds(target: str, tmp_path: Path) -> None:
    """Greedily and by beams, in a batch of unequal prompts, and in slots that are taken anew."""
    config = LlamaConfig(**WINDOWED, key_heads=2)
    source = checkpoint(tmp_path / "checkpoint", config)
    exact = TorchRuntime(load_checkpoint(str(source)).model.double())
    bundle = bundle_of(load_checkpoint(str(source)), tmp_path / "bundle", target)
    runtime = runtimes.load(ENGINES[target], bundle)
    facts = bundle.manifest.facts
    assert facts.windows == (3,)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 32, length).tolist() for length in (9, 1, 14, 2, 6)]
    for how in ({}, {"beams": 3, "nbest": 2}):
        options = SearchOptions(max_new_tokens=12, **how)
        alone = [generate(exact, [prompt], facts, options)[0] for prompt in prompts]
        ways = [generate(runtime, prompts, facts, options)]
        if isinstance(runtime, ContinuousRuntime):
            ways.append(Scheduler(runtime, [(each, []) for each in prompts], facts, options, 2).run())
        for found in ways:
            assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in alone]


ENCODING: dict[str, Any] = {**WINDOWED, "key_heads": 2, "head": "hidden"}


@pytest.mark.parametrize(
    ("target", "precision", "changes"),
    [
        ("portable", "fp32", {"both_ways": True}),
        ("portable", "fp16", {}),
        ("cpu", "fp32", {"both_ways": True, "attention_cap": 2.0}),
        ("cpu", "int8", {"attention_cap": 2.0}),
        ("cpu", "fp32", {"attention_sinks": True}),
        ("portable", "fp32", {"attention_sinks": True, "both_ways": True}),
        ("cpu", "int8", {"both_ways": True, "head_norm": True}),
        ("cpu", "int4", {"head_norm": True}),
        ("portable", "fp32", {"head": "labels", "labels": ("a", "b")}),
        ("cpu", "int8", {"head": "labels", "labels": ("a",)}),
        ("cpu", "int8", {"head": "token_labels", "labels": ("a", "b")}),
        ("portable", "fp16", {"head": "spans"}),
        ("cpu", "int8", {"head": "spans"}),
    ],
)
def test_whole_texts_are_encoded_as_pytorch_does(
    target: str, precision: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    report = proven(LlamaConfig(**{**ENCODING, **changes}), tmp_path, target, precision)
    assert report.passed, report.failures()


def test_a_text_is_encoded_as_the_decoder_reads_it(tmp_path: Path) -> None:
    """Each token's state is that of a prompt that ends with it, at any length of a batch."""
    model = seeded_model(LlamaConfig(**{**ENCODING, "head": "text"})).double()
    config = LlamaConfig(**ENCODING)
    encoder = architecture.of(config).build(config).double().eval()
    encoder.load_state_dict(model.state_dict(), strict=False)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        (found,) = encoder.infer(torch.cat([ids, ids[:, :12]], 1), torch.arange(29)[None] < 17)
        ops = PlainOps(torch.arange(17), additive(torch.ones(17, 17).tril().bool(), torch.float64))
        expected = model.decoder_states(ids, ops)
    torch.testing.assert_close(found[:, :17], expected, rtol=0, atol=1e-12)


def test_the_cuda_target_refuses_a_decoder_that_encodes(tmp_path: Path) -> None:
    saved(LlamaConfig(**ENCODING), tmp_path / "checkpoint")
    with pytest.raises(UnsupportedError, match="the cuda target has no form of attention with a causal mask in an enc"):
        unproven(tmp_path / "checkpoint", tmp_path / "bundle", target="cuda", precision="fp16")


def test_interleaved_pairs_are_halves_in_another_order() -> None:
    halves, pairs = (LlamaConfig(**SMALL, rotary_pairing=pairing, key_heads=2) for pairing in ("halves", "interleaved"))
    one = Llama(halves).double().eval()
    other = Llama(pairs).double().eval()
    weights = dict(one.state_dict())
    size = halves.head_size
    order = np.arange(size).reshape(2, -1).T.ravel()
    for name in (name for name in weights if name.endswith(("attention.query.weight", "attention.key.weight"))):
        heads = weights[name].unflatten(0, (-1, size))
        weights[name] = heads[:, order].flatten(0, 1)
    other.load_state_dict(weights)
    ids = torch.arange(3, 19)[None]
    given = (ids, torch.ones_like(ids).bool(), torch.arange(16)[None])
    with torch.no_grad():
        found = [each.extend(*given, each.empty_state(1)).logits for each in (one, other)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_half_precision_survives_large_activations(tmp_path: Path) -> None:
    """The mean square of activations as large as those of trained models is beyond what fp16 holds."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Llama(PRESETS["llama-tiny"]).eval()
        model.target_embedding.tokens.weight.mul_(4000)
    save_checkpoint(tmp_path / "checkpoint", model)
    loaded = load_checkpoint(str(tmp_path / "checkpoint"))
    report = check(bundle_of(loaded, tmp_path / "bundle", "portable", "fp16"), loaded, {"ort": "cpu"})
    assert report.passed, report.failures()
