"""Encoder-decoders that classify, and encoders of T5: each target computes what PyTorch does, and faults are named."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.proof.context.test_context import checkpoint_of
from tests.proof.faults import Edit, put, unmasked, weight
from tests.seeded import bundle_of, proven, saved, seeded_model
from tests.tiny import edit_graph, tiny_config, unproven
from txport.checkpoints.checkpoint import load_checkpoint
from txport.errors import UnsupportedError
from txport.exporters.check import operators
from txport.models.architectures.t5 import PRESETS, T5Config
from txport.models.architectures.transformer import Transformer
from txport.models.ops import PlainOps, causal_mask, padding_mask, source_mask
from txport.models.parts import additive
from txport.proof.bisect.culprit import bisect
from txport.proof.context.check import compare_context

LABELS: dict[str, Any] = {"head": "labels", "labels": ("a", "b", "c")}
BART = tiny_config(**LABELS, d_model=32, norm="post", positions="learned", position_offset=2, embedding_norm=True)
T5 = dataclasses.replace(PRESETS["t5-tiny"], gated=True)
CONFIGS: dict[str, Any] = {
    "bart": BART,
    "mbart": dataclasses.replace(BART, norm="pre", wraps_last=True, problem_type="multi_label_classification"),
    "t5-labels": dataclasses.replace(T5, **LABELS),
    "bart-spans": dataclasses.replace(BART, head="spans", labels=()),
    "t5-spans": dataclasses.replace(T5, head="spans"),
    "t5-hidden": dataclasses.replace(
        T5, head="hidden", decoder_layers=T5Config.decoder_layers, sentence=("mean", "dense 16 identity", "normalize")
    ),
}
PLANS = (("portable", "fp32"), ("portable", "fp16"), ("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"))


@pytest.mark.parametrize(
    ("name", "plan"), [*itertools.product(CONFIGS, PLANS), ("t5-hidden", ("cuda", "fp16"))], ids=str
)
def test_whole_texts_are_read_as_pytorch_does(name: str, plan: tuple[str, str], tmp_path: Path) -> None:
    report = proven(CONFIGS[name], tmp_path, *plan)
    assert report.passed, report.failures()


@pytest.mark.parametrize("name", ["bart", "t5-labels"])
def test_all_attention_becomes_one_operator(name: str, tmp_path: Path) -> None:
    found = operators(bundle_of(saved(CONFIGS[name], tmp_path / "model"), tmp_path / "bundle").file("model"))
    assert (found["com.microsoft.MultiHeadAttention"], found["Softmax"]) == (2 + 2 * 2, 0)


@pytest.mark.parametrize("wraps_last", [False, True])
def test_a_classifier_reads_the_decoder_at_the_last_end_token(wraps_last: bool) -> None:
    """As the model that writes text computes it over caches, also beside a longer row, and with other end tokens."""
    config = dataclasses.replace(BART, wraps_last=wraps_last)
    reads = seeded_model(config).double()
    writes = Transformer(dataclasses.replace(config, head="text", labels=(), wraps_last=False)).double().eval()
    writes.load_state_dict(reads.state_dict(), strict=False)
    end = config.eos_id
    source = torch.tensor([[5, 9, end, 7, end, 4, 0, 0], [8, 5, 5, 9, 4, 6, 9, end]])
    lengths = torch.tensor([6, 8])
    with torch.no_grad():
        (found,) = reads.infer(source, padding_mask(lengths, 8))
        for row, (length, last) in enumerate(((6, 4), (8, 7))):
            own = source[row : row + 1, :length]
            memory = writes.encode(own, torch.tensor([length]))
            first = own[:, -1:] if wraps_last else torch.full((1, 1), config.bos_id)
            mask = additive(causal_mask(length, 0, own.device), torch.float64)
            read = memory.states, source_mask(memory.mask, torch.float64)
            ops = PlainOps(torch.arange(length), mask, writes.empty_state(1), *read)
            states = writes.decoder_states(torch.cat([first, own[:, :-1]], 1), ops)
            expected = reads.outputs(states[:, last], ops)[0]
            torch.testing.assert_close(found[row : row + 1], expected, rtol=0, atol=1e-12)


FAULTS: dict[str, tuple[str, Edit, str, str]] = {  # target, what is done, where, kind
    "value": (
        "portable",
        weight("decoder.1.cross_attention.value.weight", put(0.9)),
        "decoder layer 1, cross-attention, value",
        "weight",
    ),
    "head": ("cpu", weight("pooler.weight", put(0.9)), "pooler", "weight"),
    "padding and later tokens are seen": ("portable", unmasked(2), "decoder layer 0, self-attention", "mask"),
    "padding is seen": ("portable", unmasked(3), "decoder layer 0, cross-attention", "mask"),
    "padding is seen by the operator": ("cpu", unmasked(3), "decoder layer 0, cross-attention", "mask"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is(fault: str, tmp_path: Path) -> None:
    target, edit, where, kind = FAULTS[fault]
    checkpoint = saved(BART, tmp_path / "model")
    bundle = bundle_of(checkpoint, tmp_path / "bundle", target)
    assert bisect(bundle, checkpoint) is None
    culprit = bisect(edit_graph(bundle.path, "model", edit), checkpoint)
    assert culprit is not None
    assert (where in culprit.where, culprit.kind) == (True, kind), culprit


@pytest.mark.parametrize(("target", "precision"), [("portable", "fp32"), ("cpu", "int8")])
def test_a_decoder_that_reads_sources_is_compared_at_their_end(target: str, precision: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of("tiny", 1500, **LABELS)
    bundle = bundle_of(checkpoint, tmp_path / "bundle", target, precision)
    found = list(compare_context(bundle, checkpoint))
    assert [each for each in found if not each.passed] == []
    attentions = {f"decoder.{layer}.{kind}" for layer in range(2) for kind in ("attention", "cross_attention")}
    assert attentions < {each.tensor for each in found}
    assert {each.step for each in found} == {1499}


@pytest.mark.parametrize("name", ["bart", "t5-labels"])
def test_the_cuda_target_refuses_a_decoder_that_classifies(name: str, tmp_path: Path) -> None:
    saved(CONFIGS[name], tmp_path / "model")
    with pytest.raises(UnsupportedError, match="the cuda target has no form of attention with a causal mask in an enc"):
        unproven(tmp_path / "model", tmp_path / "bundle", target="cuda", precision="fp16")
    assert load_checkpoint(str(tmp_path / "model")).config == CONFIGS[name]
