"""Each fault of each kind of part is found where it was planted, and called by its name; no part is passed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.proof.bisect import anyparts
from tests.proof.bisect.anyparts import (
    BUCKETS,
    CLIP,
    FARTHEST,
    LONGEST,
    AddedGate,
    Backwards,
    Biased,
    Clipped,
    Crossed,
    GateAlone,
    Halved,
    InterleavedHeads,
    InTurn,
    Late,
    LateKeys,
    PlainKeys,
    PlainQueries,
    Plant,
    Ungated,
    buckets,
    checkpoint_of,
    exchanged,
    faulty,
    norm,
    of_class,
    part,
    times,
    turned,
)
from tests.proof.faults import attribute, weight
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle, seal
from txport.checkpoints.checkpoint import Checkpoint
from txport.checkpoints.weights.streamed import emptied, streamed
from txport.errors import ParityError
from txport.exporters.export import export_graphs
from txport.models import architecture, ops
from txport.models.architectures.bert import PRESETS, Bert
from txport.models.architectures.llama import Llama, LlamaConfig, LlamaEncoder
from txport.models.facts import StateTensor
from txport.models.parts import FeedForward, Rotary, SoftCap, Window, bucket_table
from txport.models.parts.positions import speeds
from txport.proof.bisect import causes, taps
from txport.proof.bisect import culprit as module
from txport.proof.bisect.culprit import bisect
from txport.proof.bisect.taps import IN, Tap, truth
from txport.proof.faults.calls import WATCHED, recording
from txport.proof.faults.evidence import INPUT, OUTPUT
from txport.proof.parity.check import check
from txport.targets.ports import DECODER, ENCODER


def of_way(*, both_ways: bool) -> Callable[[Tensor], Tensor]:
    return lambda table: bucket_table(BUCKETS, FARTHEST, LONGEST, both_ways=both_ways)


Fault = tuple[dict[str, Any], str, Plant, str, str, str]  # config, target, what is done, where, kind, words
OWN, CORE = "decoder layer 0, self-attention", "attention.core"
IN_ENCODER = "encoder layer 0, self-attention"
VECTORS_OF = [f"encoder.0.{CORE}.relative_{each}" for each in ("keys", "values")]
FEED_FORWARD = "decoder layer 0, feed-forward"
LEARNED = {"positions": "learned"}
NORM, NORM_OF = "decoder.0.feed_forward_residual.norm", "decoder layer 0, norm of feed-forward"
ROTARY = {"positions": "rotary"}
BIAS = {"positions": "bias"}
VECTORS = {"positions": "vectors"}
FAULTS: dict[str, Fault] = {
    "RMSNorm as LayerNorm": (
        {}, "portable", norm(NORM, "layer without bias"), NORM_OF, "norm", "LayerNorm in place of RMSNorm",
    ),
    "UnbiasedNorm as LayerNorm": (
        {"norm": "unbiased"}, "portable", norm(NORM, "layer"), NORM_OF, "norm", "LayerNorm in place of UnbiasedNorm",
    ),
    "LayerNorm as RMSNorm": (
        {"norm": "layer"}, "portable", norm(NORM, "rms"), NORM_OF, "norm", "RMSNorm in place of LayerNorm",
    ),
    "LayerNorm without its bias": (
        {"norm": "layer"}, "portable", norm(NORM, "layer without bias"), NORM_OF, "weight", "its bias is not added",
    ),
    "epsilon of an RMSNorm": ({}, "cpu", part(NORM, eps=0.02), NORM_OF, "epsilon", "epsilon is 0.02, the model's is"),
    "no rotation of queries": (
        ROTARY, "portable", of_class("decoder.0.attention", PlainQueries), OWN, "position",
        "queries are not rotated by their positions",
    ),
    "no rotation of keys": (
        ROTARY, "portable", of_class("decoder.0.attention", PlainKeys), f"{OWN}, cached keys", "position",
        "keys are not rotated by their positions",
    ),
    "keys a position too far": (
        ROTARY, "portable", of_class("decoder.0.attention", LateKeys), f"{OWN}, cached keys", "position",
        "keys are rotated by positions that are off by +1",
    ),
    "no rotation in the encoder": (
        ROTARY, "portable", part("encoder.0.attention", rotary=None), IN_ENCODER, "position",
        "queries and keys are not rotated by their positions",
    ),
    "base": (
        ROTARY, "portable", turned("encoder.0.attention", base=1e5), IN_ENCODER, "position",
        "queries and keys are rotated with the base 100000, the model's is 1e+04",
    ),
    "base, cached": (
        ROTARY, "cpu", turned("decoder.0.attention", base=1e5), f"{OWN}, cached keys", "position",
        "keys are rotated with the base 100000",
    ),
    "a base that nobody uses": (
        ROTARY, "portable", turned("encoder.0.attention", base=23456), IN_ENCODER, "position",
        "queries and keys are rotated with the base 23456, the model's is 1e+04",
    ),
    "pairs of neighbours": (
        ROTARY, "portable", turned("encoder.0.attention", "neighbours"), IN_ENCODER, "position",
        "queries and keys are rotated in pairs that are interleaved, in place of halves",
    ),
    "buckets that look one way": (
        BIAS, "portable", buckets(f"encoder.0.{CORE}.bias", of_way(both_ways=False)), IN_ENCODER, "position",
        "buckets are unidirectional, the model's bidirectional",
    ),
    "buckets that look both ways": (
        BIAS, "portable", buckets(f"decoder.0.{CORE}.bias", of_way(both_ways=True)),
        OWN, "position", "buckets are bidirectional, the model's unidirectional",
    ),
    "distances of the wrong sign": (
        BIAS, "portable", of_class(f"encoder.0.{CORE}.bias", Backwards), IN_ENCODER, "position",
        "relative positions have the wrong sign",
    ),
    "no relative position bias": (
        BIAS, "cpu", part(f"decoder.0.{CORE}", bias=None), OWN, "position", "the relative position bias is not added",
    ),
    "clip distance": (
        VECTORS, "portable", of_class(VECTORS_OF[0], Clipped, VECTORS_OF[1]),
        IN_ENCODER, "position", f"relative positions are clipped at {CLIP - 1}, the model's at {CLIP}",
    ),
    "vectors off by one": (
        VECTORS, "portable", of_class(f"encoder.0.{CORE}.relative_keys", Late), IN_ENCODER, "position",
        "relative positions are off by +1 for relative keys",
    ),
    "no relative values": (
        VECTORS, "cpu", part(f"decoder.0.{CORE}", relative_values=None), OWN, "position",
        "relative position vectors are not added to values",
    ),
    "heads repeated in turn": (
        {"key_heads": 2}, "portable", of_class(f"decoder.0.{CORE}", InTurn), OWN, "heads", "keys and values are tiled",
    ),
    "interleaved heads": (
        LEARNED, "portable", of_class("encoder.0.attention", InterleavedHeads), IN_ENCODER, "heads",
        "the elements of heads are interleaved",
    ),
    "no scale": (
        {"key_heads": 2}, "portable", part(f"decoder.0.{CORE}", scale=1.0), OWN, "scale",
        "scores are scaled by 4 of what they should be, which means no scaling",
    ),
    "no cap": (
        {"capped": True, "key_heads": 2}, "cpu", part(f"decoder.0.{CORE}", cap=None), OWN, "cap",
        "scores are not capped, the model's are at 2",
    ),
    "another cap": (
        {"capped": True}, "portable", part(f"encoder.0.{CORE}.cap", limit=1.5), IN_ENCODER, "cap",
        "scores are capped at 1.5, the model's at 2",
    ),
    "a cap that the model has not": (
        {"key_heads": 2}, "portable", part(f"decoder.0.{CORE}", cap=SoftCap(3.0)), OWN, "cap",
        "scores are capped at 3, the model's are not",
    ),
    "no sinks": ({"sinks": True}, "cpu", part(f"decoder.0.{CORE}", sinks=None), OWN, "sink", "the sinks are left out"),
    "no sinks in the encoder": (
        {"sinks": True}, "portable", part(f"encoder.0.{CORE}", sinks=None), IN_ENCODER, "sink", "are left out",
    ),
    "weight of a sink": (
        {"sinks": True}, "cpu", times(f"decoder.0.{CORE}.sinks", 1.5), OWN, "weight",
        "core.sinks is 1.5 times the checkpoint's",
    ),
    "no limit": (
        {"gated": True, "limit": 0.5}, "cpu", part("decoder.0.feed_forward", limit=0.0), f"{FEED_FORWARD}, activation",
        "limit", "gates are not limited, and 1 is not added, the model's are limited at 0.5",
    ),
    "another limit": (
        {"gated": True, "limit": 0.5}, "portable", part("decoder.0.feed_forward", limit=0.3),
        f"{FEED_FORWARD}, activation", "limit", "gates are limited at 0.3, the model's are limited at 0.5",
    ),
    "norm of a result": (
        {"result_norm": True}, "cpu", norm("decoder.0.feed_forward_residual.result_norm", "layer without bias"),
        "decoder layer 0, norm of feed-forward, of its result", "norm", "LayerNorm in place of RMSNorm",
    ),
    "a sum of half of what a sublayer read": (
        {"result_norm": True}, "portable", of_class("decoder.0.attention_residual", Halved),
        f"{OWN}, residual sum", "scale", "is scaled by 0.5 of what it should be",
    ),
    "weight of an additive attention": (
        {"additive": True, "positions": "learned"}, "portable", times(f"decoder.0.{CORE}.score", 1.01), OWN, "weight",
        "core.score is 1.01 times the checkpoint's",
    ),
    "gate and the map beside it exchanged": (
        {"gated": True}, "cpu", of_class("decoder.0.feed_forward", Crossed), f"{FEED_FORWARD}, activation", "gate",
        "the gate and the up projection are exchanged",
    ),
    "no gate": (
        {"gated": True}, "portable", of_class("encoder.0.feed_forward", Ungated),
        "encoder layer 0, feed-forward, activation", "gate", "the gate is left out",
    ),
    "a gate that is added": (
        {"gated": True}, "portable", of_class("decoder.0.feed_forward", AddedGate), f"{FEED_FORWARD}, activation",
        "gate", "the gate is added",
    ),
    "the gate alone": (
        {"gated": True}, "portable", of_class("decoder.0.feed_forward", GateAlone), f"{FEED_FORWARD}, activation",
        "gate", "the up projection is left out",
    ),
    "weights of gate and inner exchanged": (
        {"gated": True}, "portable", exchanged("decoder.0.feed_forward"), f"{FEED_FORWARD}, gate", "weight",
        "decoder.0.feed_forward.gate.weight",
    ),
    "another activation": (
        {}, "portable", part("decoder.0.feed_forward", activation="gelu_tanh"), f"{FEED_FORWARD}, activation",
        "activation", "gelu_tanh in place of silu",
    ),
    "a linear map without its bias": (
        {}, "portable", part("decoder.0.feed_forward.inner", bias=None),
        "decoder layer 0, feed-forward, first linear layer", "weight", "its bias is not added",
    ),
    "positions off by one": (
        LEARNED, "portable", part("target_embedding", offset=3), "decoder, embedding", "position",
        "positions are off by +1",
    ),
    "no positions": (
        LEARNED, "portable", part("target_embedding", positions=None), "decoder, embedding", "position",
        "no position is added",
    ),
    "scale of an embedding": (
        ROTARY, "portable", part("target_embedding", scale=1.0), "decoder, embedding", "scale",
        "the embedding of a token is scaled by 0.25 of what it should be",
    ),
    "a biased deviation": (
        {"norm": "unbiased"}, "portable", of_class(NORM, Biased), NORM_OF, "norm", "in place of UnbiasedNorm",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def of_any_parts(few_cases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting again has tests of its own."""
    monkeypatch.setattr(module, "origin", lambda *_: "")
    monkeypatch.setattr(architecture, "of", lambda config: anyparts.ARCHITECTURE)


def made(checkpoint: Checkpoint, folder: Path, target: str) -> Bundle:
    folder.mkdir()
    return seal(folder, export_graphs(checkpoint, folder, target=target))


def passes(bundle: Bundle, checkpoint: Checkpoint) -> bool:
    """Whether parity does, by graphs and logits: a search adds nothing to what these show."""
    return check(bundle, checkpoint, {"ort": "cpu"}, searches=False).passed


@pytest.mark.parametrize("fault", FAULTS)
def test_parity_fails_on_a_fault_of_a_part_and_bisect_names_it(fault: str, tmp_path: Path) -> None:
    config, target, plant, where, kind, words = FAULTS[fault]
    checkpoint = checkpoint_of(**config)
    bundle = made(faulty(checkpoint, plant), tmp_path / "out", target)
    assert not passes(bundle, checkpoint)
    culprit = bisect(bundle, checkpoint)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (where, kind), culprit.what
    assert words in culprit.what


@pytest.mark.parametrize("fault", ["a window", "clip distance", "interleaved heads", "base"])
def test_a_fault_of_attention_that_pytorch_computes_in_blocks_has_the_same_name(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MOST_SCORES", 100)
    if fault == "a window":
        test_a_wrong_window_of_an_encoder_is_named("one more", tmp_path)
    else:
        test_parity_fails_on_a_fault_of_a_part_and_bisect_names_it(fault, tmp_path)


@pytest.mark.parametrize(
    ("config", "target"),
    [
        ({"key_heads": 2, "gated": True}, "cpu"),
        ({"norm": "unbiased", "positions": "bias", "shared": True}, "portable"),
        ({"norm": "layer", "positions": "vectors"}, "cpu"),
        ({"additive": True, "positions": "learned"}, "portable"),
        ({"positions": "neighbours"}, "cpu"),
        ({"capped": True, "result_norm": True}, "portable"),
        ({"sinks": True, "gated": True, "limit": 0.5}, "cpu"),
    ],
    ids=str,
)
def test_no_sound_part_is_accused(config: dict[str, Any], target: str, tmp_path: Path) -> None:
    """On one target each: `test_architectures` takes both."""
    checkpoint = checkpoint_of(**config)
    assert bisect(made(checkpoint, tmp_path / "out", target), checkpoint) is None


def seeded_model(build: Callable[[Any], Any], config: Any) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def window_of(layer: int, size: int | None) -> Plant:
    return part(f"decoder.{layer}.attention", window=size and Window(size))


WINDOWS: dict[str, tuple[str, Plant, str, str]] = {
    "none, cpu": ("cpu", window_of(0, None), "0", "it sees all tokens before it, the model's layer the last 3"),
    "one more, cpu": ("cpu", window_of(0, 4), "0", "it sees the last 4 tokens, the model's layer the last 3"),
    "one less, portable": ("portable", window_of(2, 4), "2", "it sees the last 4 tokens, the model's layer the last 5"),
    "another layer's": ("cpu", window_of(1, 5), "1", "it sees the last 5 tokens, the model's layer all"),
}


@pytest.fixture(scope="module")
def windowed() -> Checkpoint:
    config = LlamaConfig(
        vocab_size=20, d_model=16, heads=1, decoder_layers=3, feed_forward=8, max_length=24, windows=(3, 0, 5)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Checkpoint("windows", Llama(config).eval(), "0" * 64)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_right_window_is_not_accused(target: str, windowed: Checkpoint, tmp_path: Path) -> None:
    assert bisect(made(windowed, tmp_path / "out", target), windowed) is None


@pytest.mark.parametrize("name", WINDOWS)
def test_a_wrong_window_is_named(name: str, windowed: Checkpoint, tmp_path: Path) -> None:
    target, plant, layer, words = WINDOWS[name]
    culprit = bisect(made(faulty(windowed, plant), tmp_path / "out", target), windowed)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (f"decoder layer {layer}, self-attention", "window"), culprit.what
    assert words in culprit.what


KIN: dict[str, tuple[str, str, str]] = {  # what some decoders have in place of Llama's -> target, weight, where it is
    "joint norm": ("portable", "decoder.1.attention.query_norm.weight", "decoder layer 1, self-attention, query norm"),
    "cached": ("cpu", "decoder.1.attention.key_norm.weight", "decoder layer 1, self-attention, key norm"),
    "shared norm": ("cpu", "decoder.0.attention_residual.norm.weight", "decoder layer 0, norm of self-attention"),
    "bias": ("cpu", "projection.bias", "decoder, projection to the vocabulary"),
}


@pytest.fixture(scope="module")
def kin() -> Checkpoint:
    """Sublayers side by side after one LayerNorm, joint norms of heads, half of each turned, multipliers."""
    config = LlamaConfig(
        **dict.fromkeys(("parallel", "shared_norm", "projection_bias", "head_norm", "joint_norms"), True),
        vocab_size=20,
        d_model=32,
        heads=2,
        head_size=32,
        rotary_size=16,
        decoder_layers=2,
        feed_forward=8,
        max_length=24,
        norm="layer",
        gated=False,
        residual_scale=0.5,
        logit_scale=0.5,
    )
    return Checkpoint("kin", seeded_model(Llama, config), "0" * 64)


@pytest.mark.parametrize("name", KIN)
def test_a_wrong_weight_of_a_decoder_unlike_llama_is_named(name: str, kin: Checkpoint, tmp_path: Path) -> None:
    target, weight, where = KIN[name]
    culprit = bisect(made(faulty(kin, times(weight, 1.5)), tmp_path / "out", target), kin)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (where, "weight"), culprit.what
    assert "is 1.5 times the checkpoint's" in culprit.what


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_decoder_unlike_llama_is_not_accused(target: str, kin: Checkpoint, tmp_path: Path) -> None:
    assert bisect(made(kin, tmp_path / "out", target), kin) is None


def test_a_wrong_turn_of_a_part_of_each_head_is_named(kin: Checkpoint, tmp_path: Path) -> None:
    plant = part("decoder.0.attention", rotary=Rotary(speeds(1e5, 16), 24))
    culprit = bisect(made(faulty(kin, plant), tmp_path / "out", "cpu"), kin)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == (f"{OWN}, cached keys", "position"), culprit.what
    assert "keys are rotated with the base 100000" in culprit.what


def neighbourhood(size: int | None, *, both_ways: bool = True) -> Plant:
    return part("encoder.1.attention", window=size and Window(size, both_ways=both_ways, causal=not both_ways))


BOTH_WAYS = "the model's layer less than 3 tokens to each side"
NEIGHBOURHOODS: dict[str, tuple[str, Plant, str]] = {
    "none": ("cpu", neighbourhood(None), f"it sees all tokens, {BOTH_WAYS}"),
    "one more": ("cpu", neighbourhood(4), f"it sees less than 4 tokens to each side, {BOTH_WAYS}"),
    "one less": ("portable", neighbourhood(2), f"it sees less than 2 tokens to each side, {BOTH_WAYS}"),
    "only before": ("portable", neighbourhood(3, both_ways=False), f"it sees the last 3 tokens, {BOTH_WAYS}"),
    "right": ("cpu", neighbourhood(3), ""),
}


@pytest.mark.parametrize("name", NEIGHBOURHOODS)
def test_a_wrong_window_of_an_encoder_is_named(name: str, tmp_path: Path) -> None:
    target, plant, words = NEIGHBOURHOODS[name]
    config = dataclasses.replace(PRESETS["modernbert-tiny"], windows=(0, 3, 0), max_length=24)
    checkpoint = Checkpoint("neighbourhoods", seeded_model(Bert, config), "0" * 64)
    culprit = bisect(made(faulty(checkpoint, plant), tmp_path / "out", target), checkpoint)
    assert (culprit is None) == (not words)
    if culprit is not None:
        assert (culprit.where, culprit.kind) == ("encoder layer 1, self-attention", "window"), culprit.what
        assert words in culprit.what


OF_TEXTS: dict[str, tuple[str, int | None, str]] = {
    "later tokens too": ("cpu", None, "it sees all tokens, the model's layer the last 24 tokens"),
    "a window": ("portable", 3, "it sees the last 3 tokens, the model's layer the last 24 tokens"),
    "right": ("cpu", 24, ""),
}


@pytest.mark.parametrize("name", OF_TEXTS)
def test_attention_of_a_decoder_that_encodes_is_causal(name: str, tmp_path: Path) -> None:
    target, size, words = OF_TEXTS[name]
    sizes: dict[str, Any] = {"vocab_size": 20, "d_model": 32, "heads": 2, "feed_forward": 8, "max_length": 24}
    config = LlamaConfig(**sizes, decoder_layers=3, windows=(0, 0, 3), head="hidden")
    checkpoint = Checkpoint("texts", seeded_model(LlamaEncoder, config), "0" * 64)
    plant = part("decoder.1.attention", window=size and Window(size, causal=True))
    culprit = bisect(made(faulty(checkpoint, plant), tmp_path / "out", target), checkpoint)
    assert (culprit is None) == (not words)
    if culprit is not None:
        assert (culprit.where, culprit.kind) == ("encoder layer 1, self-attention", "window"), culprit.what
        assert words in culprit.what


def test_a_window_in_a_model_without_windows_is_named(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=20, d_model=16, heads=1, decoder_layers=1, feed_forward=8, max_length=24)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        checkpoint = Checkpoint("no windows", Llama(config).eval(), "0" * 64)
    bundle = made(faulty(checkpoint, window_of(0, 3)), tmp_path / "out", "cpu")
    assert not passes(bundle, checkpoint)
    culprit = bisect(bundle, checkpoint)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == ("decoder layer 0, self-attention", "window"), culprit.what
    assert culprit.what == "it sees the last 3 tokens, the model's layer all"


def test_logits_without_their_cap_are_named(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=20, d_model=16, heads=1, decoder_layers=1, feed_forward=8, max_length=24, logit_cap=2
    )
    checkpoint = Checkpoint("capped", Llama(config).eval(), "0" * 64)
    bundle = made(faulty(checkpoint, part("logit_cap", limit=1e6)), tmp_path / "out", "portable")
    culprit = bisect(bundle, checkpoint)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == ("logits", "activation")
    assert culprit.what == "no activation in place of a cap of 2"


def test_of_a_part_that_runs_twice_the_call_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(norm="layer", shared=True)
    bundle = made(checkpoint, tmp_path / "out", "portable")
    bundle = edit_graph(bundle.path, ENCODER, attribute("LayerNormalization", 3, epsilon=1e-2))
    culprit = bisect(bundle, checkpoint)
    assert culprit is not None
    assert (culprit.where, culprit.kind) == ("encoder layer 0, norm of feed-forward (call 2)", "epsilon")


class Gain(nn.Module):
    """A part that nobody has heard of."""

    def __init__(self, feed_forward: FeedForward) -> None:
        super().__init__()
        self.within = feed_forward
        self.weight = nn.Parameter(2 * feed_forward.outer.bias.detach())

    def forward(self, x: Tensor, ops: Any) -> Any:
        return self.within(x, ops) * self.weight


def test_a_part_that_nobody_has_heard_of_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of()
    layer: Any = checkpoint.model.decoder[0]
    layer.feed_forward = Gain(layer.feed_forward)
    bundle = made(checkpoint, tmp_path / "out", "portable")
    assert bisect(bundle, checkpoint) is None
    broken = edit_graph(bundle.path, DECODER, weight("decoder.0.feed_forward.weight", lambda values: 2 * values))
    culprit = bisect(broken, checkpoint)
    assert culprit is not None
    assert culprit.where == "decoder layer 0, feed-forward, residual sum (a part of Gain)"
    assert culprit.what == "decoder.0.feed_forward.weight is 2 times the checkpoint's"


def test_an_operator_that_is_none_of_a_weights_is_refused(tmp_path: Path) -> None:
    def read_again(graph: onnx.ModelProto) -> None:
        graph.graph.node.append(onnx.helper.make_node("Neg", ["decoder.0.feed_forward.outer.weight"], ["less"], "less"))

    checkpoint = checkpoint_of()
    bundle = edit_graph(made(checkpoint, tmp_path / "out", "portable").path, DECODER, read_again)
    with pytest.raises(ParityError, match=r"no part covers decoder\.0\.feed_forward\.outer: Neg 'less' is none of its"):
        bisect(bundle, checkpoint)


def test_a_packed_weight_that_the_model_has_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of()
    bundle = made(checkpoint, tmp_path / "out", "cpu")
    known = taps.holders_of(checkpoint.model)
    del known["decoder.0.attention.key.weight"]
    monkeypatch.setattr(taps, "holders_of", lambda model: known)
    with pytest.raises(ParityError, match=r"no part covers decoder\.0\.attention\.key\.weight, which .* packs with"):
        bisect(bundle, checkpoint)


def test_a_tap_that_pytorch_does_not_compute_is_refused() -> None:
    with pytest.raises(ParityError, match=r"no part covers decoder\.0\.query in: PyTorch does not compute it"):
        truth(Tap(("decoder.0.query",), IN, "x"), {}, {})


def test_a_kind_of_part_without_faults_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {kind: each for kind, each in causes.FAULTS_OF_GRAPHS.items() if kind is not FeedForward}
    monkeypatch.setattr(causes, "FAULTS_OF_GRAPHS", known)
    checkpoint = checkpoint_of()
    bundle = made(faulty(checkpoint, part("decoder.0.feed_forward", activation="relu")), tmp_path / "out", "portable")
    with pytest.raises(ParityError, match=r"no part covers decoder\.0\.feed_forward\.outer in, a FeedForward"):
        bisect(bundle, checkpoint)


def test_every_kind_that_is_watched_has_words_and_faults_or_lies_within_one_that_has() -> None:
    from txport.proof.faults.calls import INNER
    from txport.proof.faults.words import WORDS

    assert set(WATCHED) <= set(WORDS)
    assert set(WATCHED) - set(INNER) <= set(causes.FAULTS_OF_GRAPHS)
    assert {StateTensor, INPUT, OUTPUT} <= set(causes.FAULTS_OF_GRAPHS)


def test_each_call_of_a_part_is_recorded_within_the_one_that_made_it() -> None:
    model = checkpoint_of(shared=True).model
    import torch

    with recording(model) as record, torch.inference_mode():
        model.encode(torch.tensor([[4, 5, 6]]), torch.tensor([3]))
    calls = record["encoder.0.attention"]
    assert len(calls) == 2
    assert not np.allclose(calls[0].gave, calls[1].gave)
    turns = calls[1].inner_calls(model.encoder[0].attention.rotary)
    assert [each.parent for each in turns] == [calls[1]] * 2


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_order_of_calls_is_recorded_without_products(*, is_streamed: bool) -> None:
    model = checkpoint_of(shared=True).model
    if is_streamed:
        held = {name: each.detach() for name, each in model.named_parameters()}
        model = streamed(emptied(model), held.__getitem__)

    @torch.inference_mode()
    def encoded() -> Tensor:
        return model.encode(torch.tensor([[4, 5, 6]]), torch.tensor([3])).states

    with recording(model) as record:
        before = encoded()
    with recording(model, tensors=False) as order:
        assert not torch.equal(encoded(), before)
    every = [sorted((call.order, name) for name in each for call in each[name]) for each in (record, order)]
    linear = [[name for _, name in each if isinstance(record[name][0].part, nn.Linear)] for each in every]
    assert linear[0] == linear[1]
    assert torch.equal(encoded(), before)
