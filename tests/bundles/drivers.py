"""A small bundle of each task in each target, without a proof, and the right answers of `txport run`'s own search."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import txport
from tests.seeded import seeded_model
from tests.tiny import tiny_config
from txport.audio.spectrogram import drawn_features, in_blocks, log_mel
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.checkpoints.folder import preset_config
from txport.models.architectures.bert import MULTI_LABEL, REGRESSION
from txport.models.audio import Features
from txport.proof.proven import write

SOURCE = [5, 9, 11, 8, 7]
RULES = {
    "forced_bos_token_id": 9,
    "suppress_tokens": [4, 11, 12],
    "begin_suppress_tokens": [2, 13],
    "min_new_tokens": 3,
    "forced_eos_token_id": 2,
    "max_new_tokens": 9,
}
LABELS = ("no", "/m/01 a|b", "<b>yes</b>")
STEPS = ("last", "dense 8 tanh", "normalize")
PLANS = [("portable", "fp32"), ("portable", "fp16"), ("cpu", "fp32")]


def configs() -> dict[str, tuple[Any, dict[str, Any]]]:
    """A config for each task, and what its checkpoint says of search or pooling."""
    bert = preset_config("bert-tiny")
    return {
        "seq2seq": (tiny_config(), {}),
        "rules": (tiny_config(), RULES),
        "speech": (preset_config("whisper-mini-tiny"), {"suppress_tokens": [30, 63]}),
        "causal": (preset_config("gpt2-tiny"), {"max_new_tokens": 20}),
        "embed": (dataclasses.replace(bert, head="hidden"), {"pooling": "mean", "normalize": True}),  # type: ignore
        "pooled": (dataclasses.replace(bert, head="hidden", sentence=STEPS), {"pooling": "last", "normalize": True}),  # type: ignore
        "classify": (dataclasses.replace(bert, head="labels", labels=LABELS), {}),  # type: ignore
        "labels": (dataclasses.replace(bert, head="labels", labels=LABELS, problem_type=MULTI_LABEL), {}),  # type: ignore
        "values": (dataclasses.replace(bert, head="labels", labels=("v",), problem_type=REGRESSION), {}),  # type: ignore
        "tag": (dataclasses.replace(bert, head="token_labels", labels=LABELS), {}),  # type: ignore
        "replaced": (dataclasses.replace(bert, head="replaced", labels=("v",)), {}),  # type: ignore
        "fill": (bert, {}),
        "answer": (dataclasses.replace(bert, head="spans"), {}),  # type: ignore
    }


CASES = tuple(configs())


def made(case: str, target: str, precision: str, folder: Path) -> Bundle:
    """The bundle of a case, or of the preset of this name."""
    config, generation = configs().get(case) or (preset_config(case), {})
    save_checkpoint(folder / "model", seeded_model(config, seed=3))
    checkpoint = dataclasses.replace(load_checkpoint(str(folder / "model")), generation=generation)
    (folder / "out").mkdir()
    return write(checkpoint, folder / "out", target=target, precision=precision)


def audio(reads: Features) -> Any:
    """Samples of one window."""
    noise = Features(size=1, frames=reads.samples, longest=1, sampling_rate=1, hop_length=1, n_fft=2)
    return drawn_features(noise, 1)[0]


def source_of(bundle: Bundle) -> Any:
    """What a driver is given: ids with special ones, or features."""
    facts = bundle.manifest.facts
    if isinstance(facts.source, Features):
        return log_mel(in_blocks(audio(facts.source)), facts.source)
    ids = [facts.vocabulary.mask, *SOURCE] if facts.ability == "fill" else SOURCE
    return facts.vocabulary.with_special([each for each in ids if each is not None])


def right(bundle: Bundle) -> Any:
    """What txport makes of the same."""
    model = txport.load(bundle.path)
    facts = bundle.manifest.facts
    if isinstance(facts.source, Features):
        return model.transcribe([audio(facts.source)], language="en")[0].tokens
    if facts.task == "encode":
        text = " ".join(map(str, ([facts.vocabulary.mask] if facts.ability == "fill" else []) + SOURCE))
        ways = {"embed": _embed, "classify": _classify, "tag": _tag, "fill": _fill, "answer": _answer}
        return ways[str(facts.ability)](model, text)
    found = next(iter(model.generate([" ".join(map(str, SOURCE))])))
    return list(found.hypotheses[0].tokens)


def _embed(model: Any, text: str) -> Any:
    return model.embed([text])[0]


def _classify(model: Any, text: str) -> int | list[float]:
    found = {each.label: each.score for each in model.classify([text])[0]}
    if model.facts.function_to_apply == "softmax":
        return LABELS.index(max(found, key=lambda label: found[label]))
    return [found[label] for label in model.facts.labels]


def _answer(model: Any, text: str) -> tuple[int, int]:
    """Of a text that is a context alone."""
    starts, ends = (each.astype(np.float64) for each in next(model.infer([text])).values())
    spans = [
        (first, last) for first in range(1, len(starts) - 1) for last in range(first, min(first + 15, len(ends) - 1))
    ]
    return max(spans, key=lambda span: starts[span[0]] + ends[span[1]])


def _tag(model: Any, text: str) -> list[int] | list[float]:
    if model.facts.function_to_apply == "sigmoid":
        return [each.score if each.label == "v" else 1 - each.score for each in model.tag([text])[0]]
    return [LABELS.index(each.label) for each in model.tag([text])[0]]


def _fill(model: Any, text: str) -> list[int]:
    return [each[0].id for each in model.fill([text], top=1)[0]]


def same(found: Any, expected: Any, bundle: Bundle) -> bool:
    """Whether a driver gives what txport does; tags of special tokens do not count."""
    facts = bundle.manifest.facts
    if facts.ability == "tag":
        found = found[len(facts.vocabulary.before) : len(found) - len(facts.vocabulary.after)]
    if facts.ability == "embed" or facts.function_to_apply in ("sigmoid", "none"):
        return bool(np.allclose(found, expected, atol=1e-3 if bundle.manifest.precision == "fp16" else 1e-6))
    if facts.speech is not None:
        found = [each for each in found if each not in facts.writes.ends]
        expected = [each for each in expected if each not in facts.writes.ends]
    return bool([*found] == [*expected] if facts.ability == "answer" else found == expected)
