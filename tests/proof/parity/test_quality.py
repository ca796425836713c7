"""The scores of a bundle beside PyTorch's."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

import txport
from tests.tiny import SAMPLES, unproven
from txport import runtimes
from txport.api import model as api
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.cli.textio import draw_texts
from txport.errors import TextError, UnavailableError, UnsupportedError
from txport.exporters.weights import holding
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.proof.metrics import METRICS, References, Score, matches, metric_of
from txport.proof.parity.check import check
from txport.proof.parity.quality import Quality, compare_quality, generated, require_targets
from txport.proof.parity.tolerances import tolerance_of
from txport.proof.parity.truth import generation as module

TOLERANCE = tolerance_of("fp32")
GOOD, BAD = "the cat sat on the red mat by the door", "a dog ran from the blue house to a tree"


def outputs_of(right: list[bool]) -> list[str]:
    return [GOOD if each else BAD for each in right]


def compared(actual: list[bool], expected: list[bool], metric: str | Score = "exact") -> Quality:
    texts = {str(number): [GOOD] for number in range(len(expected))}
    return compare_quality("ort", outputs_of(actual), outputs_of(expected), texts, metric_of(metric), TOLERANCE)


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
    found = compared(actual, expected)
    assert (found.broken, found.mended, found.passed) == (broken, mended, passed)
    assert found.rate - found.reference == pytest.approx(100 * (broken - mended) / len(actual))


@pytest.mark.parametrize("metric", METRICS)
def test_a_worse_score_fails_in_the_right_direction(metric: str) -> None:
    require_packages(metric)
    good, bad = [True] * 200, [False] * 30 + [True] * 170
    worse, better, same, one = (
        compared(*pair, metric) for pair in ((bad, good), (good, bad), (bad, bad), ([False] + [True] * 199, good))
    )
    assert [each.passed for each in (worse, better, same, one)] == [False, True, True, True]
    assert (worse.rate > worse.reference) == worse.lower_is_better == (metric in ("exact", "wer", "cer"))
    assert worse.allowed > same.allowed == TOLERANCE.points
    assert worse.describe().startswith("ort: ")
    assert worse.to_dict()["metric"] == metric


def test_the_standard_error_is_that_of_counts() -> None:
    """By leaving out groups, for a function that could be counted: of changes that are spread at random."""
    rng = random.Random(0)
    expected = [rng.random() < 0.5 for _ in range(1000)]
    actual = [each != (rng.random() < 0.1) for each in expected]

    def share(references: References, outputs: Sequence[str]) -> float:
        return 100 * sum(matches(references, outputs)) / len(outputs)

    found, counted = compared(actual, expected, share), compared(actual, expected, "accuracy")
    assert (found.rate, found.metric, counted.lower_is_better) == (counted.rate, "share", False)
    assert found.allowed == pytest.approx(counted.allowed, rel=0.5)


def test_scores_are_those_of_the_libraries() -> None:
    jiwer, sacrebleu = pytest.importorskip("jiwer"), pytest.importorskip("sacrebleu")
    outputs = ["the cat sat on a mat", "hello there world", "it rains all day long", "yes"]
    first = ["the cat sat on the mat", "hello big world", "it rained the whole day long", "yes"]
    second = ["a cat was on a mat", "hello world", "it rains the whole day", "yes"]
    one, both = [[each] for each in first], [list(pair) for pair in zip(first, second, strict=True)]
    ragged = [both[0], one[1], both[2], one[3]]
    found = {name: METRICS[name].score for name in METRICS}
    assert found["wer"](one, outputs) == pytest.approx(100 * jiwer.wer(first, outputs))
    assert found["cer"](one, outputs) == pytest.approx(100 * jiwer.cer(first, outputs))
    assert found["wer"]([["a b c d", "x b c d"], ["p q", "a b c d"]], ["x b c d", "a b c z"]) == pytest.approx(12.5)
    assert found["bleu"](both, outputs) == sacrebleu.corpus_bleu(outputs, [first, second]).score
    assert found["chrf"](both, outputs) == sacrebleu.corpus_chrf(outputs, [first, second]).score
    missing = [second[0], None, second[2], None]
    assert found["bleu"](ragged, outputs) == sacrebleu.corpus_bleu(outputs, [first, missing]).score


def test_counted_scores_are_those_that_are_defined() -> None:
    """F1 of a: 2 * 2 / (3 + 2), of b: 2 * 1 / (2 + 2), of c: 0 of an output that is no target."""
    references, outputs = [["a"], ["a"], ["b"], ["b"], ["a"]], ["a", "a", "b", "c", "b"]
    assert METRICS["accuracy"].score(references, outputs) == pytest.approx(60)
    assert METRICS["exact"].score(references, outputs) == pytest.approx(40)
    assert METRICS["f1"].score(references, outputs) == pytest.approx(100 * (4 / 5 + 1 / 2 + 0) / 3)
    assert METRICS["f1"].score([["b", "a"], ["b"]], ["a", "b"]) == pytest.approx(100)


@pytest.mark.usefixtures("few_cases")
def test_a_function_of_the_users_own(bundle: Bundle, checkpoint: Path) -> None:
    texts = {text: ["nothing says this", "nor this"] for text in SAMPLES}
    asked: list[Any] = []

    def brevity(references: References, outputs: Sequence[str]) -> float:
        asked.append(references)
        return -sum(map(len, outputs)) / len(outputs)

    report = api.parity(bundle, checkpoint, {"ort": "cpu"}, texts=texts, metric=brevity)
    assert [(each.metric, each.passed, each.changed) for each in report.quality] == [("brevity", True, 0)]
    assert report.quality[0].rate < 0
    assert asked[0] == list(texts.values())
    with pytest.raises(UnsupportedError, match="brevity must be a number, got 'good'"):
        metric_of(named(lambda *_: "good")).score([["a"]], ["a"])
    with pytest.raises(UnsupportedError, match="the metric brevity must return a finite number, got nan"):
        metric_of(named(lambda *_: float("nan"))).score([["a"]], ["a"])


def named(function: Any) -> Any:
    function.__name__ = "brevity"
    return function


def test_what_a_metric_needs_is_said_before_the_comparison(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jiwer", "sacrebleu"):
        monkeypatch.setitem(sys.modules, name, None)
    texts = {"AA": ["AA"]}
    for metric, package in (("wer", "jiwer"), ("chrf", "sacrebleu")):
        with pytest.raises(UnavailableError, match=rf"the metric {metric} needs {package}"):
            api.parity(bundle, "not read", {}, texts=texts, metric=metric)
    for how, message in (
        ({"metric": "bleu"}, "metric needs texts"),
        (
            {"texts": texts, "metric": "rouge"},
            "unknown metric 'rouge'; supported: exact, wer, cer, bleu, .*, or a function",
        ),
        ({"texts": {"AA": []}}, r"texts: 'AA' needs a list of targets, got \[\]"),
        ({"texts": {"AA": "AA"}}, "texts: 'AA' needs a list of targets, got 'AA'"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            api.parity(bundle, "not read", {}, **how)


def require_packages(metric: str) -> None:
    if package := METRICS[metric].package:
        pytest.importorskip(package)


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
    monkeypatch.setattr(module, "generated", lambda _, runtime, texts: asked.append(runtime) or ["AA"])
    assert check(bundle, loaded, {"ort": "cpu"}, texts={"bad": ["AA"]}).passed
    weights = [dict(asked[0]._model.named_parameters()), dict(loaded.model.named_parameters())]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    held = dict(holding(bundle, loaded).model.named_parameters())
    assert any(not torch.equal(held[name], weights[1][name]) for name in held)


def test_any_of_the_targets_is_right(bundle: Bundle, checkpoint: Path) -> None:
    said = txport.load(bundle.path).generate(list(SAMPLES))
    texts = {each.input: ["something else", each.output] for each in said}
    runtime = runtimes.load("ort", bundle)
    assert matches(list(texts.values()), generated(bundle, runtime, texts)) == [True] * 4
    more = {**texts, "bad": ["something else"]}
    assert matches(list(more.values()), generated(bundle, runtime, more)).count(False) == 1


def test_outputs_are_those_that_a_bundle_gives_with_its_options(bundle: Bundle) -> None:
    """Forbidden tokens and lengths are the bundle's; beams and their options are not used."""
    model = txport.load(bundle.path)
    (said,) = model.generate(["bad"])
    options: dict[str, Any] = {"max_new_tokens": 2, "suppress_tokens": [said.hypotheses[0].tokens[0]]}
    (wanted,) = model.generate(["bad"], **options)
    manifest = replace(bundle.manifest, generation={**options, "beams": 3, "length_penalty": 2.0})
    changed = replace(bundle, manifest=manifest)
    assert generated(changed, runtimes.load("ort", bundle), {"bad": ["x"]}) == [wanted.output] != [said.output]


def test_a_text_that_is_too_long_is_named(bundle: Bundle, checkpoint: Path) -> None:
    with pytest.raises(TextError, match=r"'aaaaa.* has 2[0-9] tokens, the model takes at most 24; split the text"):
        generated(bundle, runtimes.load("ort", bundle), {"bad": ["AA"], "a" * 25: ["AA"]})


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
    assert [[each] for each in generated(bundle, runtimes.load("ort", bundle), texts)] == list(texts.values())


def test_texts_are_drawn_by_seed_with_all_their_targets() -> None:
    pairs = [(str(number % 50), f"target {number}") for number in range(100)]
    drawn = draw_texts(pairs, 10, 3)
    assert drawn == draw_texts(pairs[::-1], 10, 3) | drawn
    assert len(drawn) == 10
    assert all(len(targets) == 2 for targets in drawn.values())
    assert set(drawn) != set(draw_texts(pairs, 10, 4))
    assert len(draw_texts(pairs, 1000, 0)) == 50


def test_a_target_that_is_no_label_of_a_classifier_is_refused() -> None:
    labels = ("no", "perhaps", "yes")
    texts = {"a": ["yes"], "b": ["no", "LABEL_2"]}
    with pytest.raises(UnsupportedError, match=r"'LABEL_2' is no label of the model; its labels are no, perhaps, yes$"):
        require_targets(texts, "accuracy", labels)
    require_targets({"a": ["yes"], "b": ["no"]}, "accuracy", labels)
    require_targets(texts, lambda references, outputs: 0.0, labels)
    with pytest.raises(UnsupportedError, match=r"are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.$"):
        require_targets(texts, "f1", [str(number) for number in range(11)])
