"""The error rate of a bundle beside PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import txport
from tests.tiny import SAMPLES, unproven
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.cli.textio import draw_texts
from txport.errors import TextError
from txport.exporters.weights import holding
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.proof.parity.check import check
from txport.proof.parity.quality import compare_quality, right_ones
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.parity.truth import generation as module


@pytest.mark.parametrize(
    ("expected", "actual", "broken", "mended", "passed"),
    [
        ([True] * 100, [True] * 100, 0, 0, True),
        ([True] * 1000, [False] + [True] * 999, 1, 0, True),  # one text decides nothing
        ([True] * 1000, [False] * 30 + [True] * 970, 30, 0, False),
        ([True, False] * 500, [False, True] * 500, 500, 500, True),
        ([False] * 100, [True] * 100, 0, 100, True),
    ],
)
def test_only_what_chance_does_not_explain_fails(
    expected: list[bool], actual: list[bool], broken: int, mended: int, passed: bool
) -> None:
    found = compare_quality("ort", actual, expected, tolerance_of("fp32"))
    assert (found.broken, found.mended, found.passed) == (broken, mended, passed)
    assert found.rate - found.reference == pytest.approx(100 * (broken - mended) / len(actual))


@pytest.mark.usefixtures("few_cases")
def test_a_bundle_is_as_good_as_its_checkpoint(bundle: Bundle, checkpoint: Path) -> None:
    loaded = load_checkpoint(str(checkpoint))
    outputs = {text: ["nothing says this"] for text in SAMPLES}
    report = check(bundle, loaded, {"ort": "cpu"}, texts=outputs)
    assert report.passed
    assert [(each.wrong, each.wrong_in_pytorch, each.texts) for each in report.quality] == [(4, 4, 4)]
    assert report.to_dict()["texts"] != check(bundle, loaded, {"ort": "cpu"}, texts={"bad": [""]}).to_dict()["texts"]


@pytest.mark.usefixtures("few_cases")
def test_a_quantised_bundle_is_held_against_what_users_had(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not against PyTorch with the weights in 4 bits, which would excuse what they cost."""
    bundle = unproven(checkpoint, tmp_path / "out", target="cpu", precision="int4")
    loaded = load_checkpoint(str(checkpoint))
    asked: list[Any] = []
    monkeypatch.setattr(module, "right_ones", lambda _, runtime, texts: asked.append(runtime) or [True])
    assert check(bundle, loaded, {"ort": "cpu"}, texts={"bad": ["AA"]}).passed
    weights = [dict(asked[0]._model.named_parameters()), dict(loaded.model.named_parameters())]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    held = dict(holding(bundle, loaded).model.named_parameters())
    assert any(not torch.equal(held[name], weights[1][name]) for name in held)


def test_any_of_the_targets_is_right(bundle: Bundle, checkpoint: Path) -> None:
    said = txport.load(bundle.path).generate(list(SAMPLES))
    texts = {each.input: ["something else", each.output] for each in said}
    runtime = runtimes.load("ort", bundle)
    assert right_ones(bundle, runtime, texts) == [True] * 4
    assert right_ones(bundle, runtime, {**texts, "bad": ["something else"]}).count(False) == 1


def test_a_text_that_is_too_long_is_named(bundle: Bundle, checkpoint: Path) -> None:
    with pytest.raises(TextError, match=r"'aaaaa.* has 2[0-9] tokens, the model takes at most 24; split the text"):
        right_ones(bundle, runtimes.load("ort", bundle), {"bad": ["AA"], "a" * 25: ["AA"]})


def test_of_a_prompt_the_text_is_what_it_adds_to_it(tmp_path: Path) -> None:
    """A tokenizer that writes a space before each word, as `Model.generate` gives it."""
    config = GPT2Config(vocab_size=6, d_model=16, heads=2, decoder_layers=1, max_length=12, eos_id=5, pad_id=5)
    folder = tmp_path / "model"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_checkpoint(folder, GPT2(config).eval())
    words = {word: number for number, word in enumerate(["▁a", "▁b", "▁c", "▁d", "[UNK]", "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    bundle = unproven(folder, tmp_path / "out")
    found = txport.load(bundle.path).generate(["a b"])
    assert found[0].output.startswith(" b")
    texts = {each.input: [each.output] for each in found}
    assert right_ones(bundle, runtimes.load("ort", bundle), texts) == [True]


def test_texts_are_drawn_by_seed_with_all_their_targets() -> None:
    pairs = [(str(number % 50), f"target {number}") for number in range(100)]
    drawn = draw_texts(pairs, 10, 3)
    assert drawn == draw_texts(pairs[::-1], 10, 3) | drawn
    assert len(drawn) == 10
    assert all(len(targets) == 2 for targets in drawn.values())
    assert set(drawn) != set(draw_texts(pairs, 10, 4))
    assert len(draw_texts(pairs, 1000, 0)) == 50
