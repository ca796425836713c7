"""What JavaScript finds is what Python finds: the same tokens, by every kind of search, and the same scores."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import txport
from tests import transformers_js
from tests.javascript import in_chromium, on_node
from tests.tiny import tiny_config, tiny_model, unproven
from txport.api.locate import find_bundle
from txport.checkpoints.checkpoint import save_checkpoint

PAGES = Path(__file__).parents[2] / "docs"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beams": 5, "nbest": 3},
    "samples": {"do_sample": True, "seed": 3, "nbest": 2, "temperature": 1.3, "top_p": 0.9},
    "of the likeliest": {"do_sample": True, "seed": 12345678901234, "top_k": 5, "min_p": 0.05},
}
OPTIONS: dict[str, Sequence[Any]] = {  # what a search is drawn from; the first is what stands for nothing
    "max_new_tokens": (8, 1, 3),
    "min_length": (0, 0, 4, 9),
    "min_new_tokens": (0, 0, 2),
    "length_penalty": (1.0, 0.3, -1.0),
    "sequence_bias": ((), (), (((7,), 3.0), ((8, 9), -4.0), ((2,), -2.5)), (((5,), -1.0), ((5, 6, 7), 9.0))),
    "encoder_repetition_penalty": (1.0, 1.0, 1.5, 0.7),
    "repetition_penalty": (1.0, 1.0, 1.4, 0.8),
    "no_repeat_ngram_size": (0, 0, 1, 2),
    "encoder_no_repeat_ngram_size": (0, 0, 0, 1, 2),
    "suppress_tokens": ((), (), (5, 6), tuple(range(3, 22))),
    "begin_suppress_tokens": ((), (7,)),
    "bad_words_ids": ((), ((8,), (9, 10)), ((5, 9),)),
    "forced_eos_token_id": (None, None, 9),
    "exponential_decay_length_penalty": (None, None, None, (1, 1.3), (0, 0.7)),
    "renormalize_logits": (False, False, True),
    "eos_token_id": (None, None, (2, 9), 11),
    "stop": ((), (), ("a",), ("1", " 5")),  # of letters, or of numbers where there is no tokenizer
}
KINDS: dict[str, dict[str, Sequence[Any]]] = {
    "greedy": {},
    "beams": {"beams": (3, 2, 4), "early_stopping": (False, True, "never"), "patience": (1.0, 0.5, 2.0)},
    "samples": {
        "do_sample": (True,),
        "seed": (0, 2**32, 10**30),
        "temperature": (1.0, 0.4, 3.0),
        "top_k": (0, 4, 1),
        "top_p": (1.0, 0.7),
        "min_p": (0.0, 0.0, 0.2),
        "top_h": (None, None, 0.6),
        "typical_p": (1.0, 1.0, 0.5),
        "epsilon_cutoff": (0.0, 0.0, 0.05),
        "eta_cutoff": (0.0, 0.0, 0.2),
    },
}


def words(count: int) -> list[str]:
    """Words of the documents of this project, drawn by seed."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    return random.Random(0).sample(sorted(set(re.findall("[a-z]{2,20}", pages))), count)


def drawn(seed: int, more: dict[str, Any]) -> dict[str, Any]:
    """Options of one search that make sense together."""
    draw = random.Random(seed)
    table = {**OPTIONS, **KINDS[draw.choice(list(KINDS))], **more}
    found = {name: draw.choice(values) for name, values in table.items()}
    found["min_new_tokens"] = min(found["min_new_tokens"], found["max_new_tokens"])
    if "beams" in found:
        found["nbest"] = max(1, round(found["beams"] * found["patience"] / 2))
    elif "seed" in found:
        found["nbest"] = draw.choice((1, 3))
    if found["forced_eos_token_id"] in found["suppress_tokens"]:
        found["suppress_tokens"] = ()
    return {name: value for name, value in found.items() if value not in (None, ())}


def sent(options: dict[str, Any]) -> dict[str, Any]:
    """As JSON may hold them: a number of JavaScript's has 53 bits."""
    return {**options, "seed": str(options["seed"])} if options.get("seed", 0) > 2**53 else options


def found_by(model: txport.Model, source: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    """As JSON tells it."""
    prefixes = [options.pop("prefix")] if "prefix" in options else None
    found = model.search([source], prefixes=prefixes, **options)[0]
    return [{"tokens": list(each.tokens), "score": each.score, "alignment": each.alignment} for each in found]


def require_same(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], case: object) -> None:
    assert [list(each["tokens"]) for each in theirs] == [list(each["tokens"]) for each in ours], case
    scores = [[each["score"] for each in side] for side in (theirs, ours)]
    np.testing.assert_allclose(*scores, atol=1e-4, err_msg=str(case))
    for each, other in zip(theirs, ours, strict=True):
        if other["alignment"]:
            np.testing.assert_allclose(each["alignment"], other["alignment"], atol=1e-4, err_msg=str(case))


@pytest.fixture(scope="module", params=["seq2seq portable", "seq2seq cpu", "causal portable", "causal cpu"])
def made(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    task, target = request.param.split()
    source = checkpoint if task == "seq2seq" else "preset:gpt2-tiny"
    return unproven(source, tmp_path_factory.mktemp("bundles") / "made", target=target).path


def test_searches_drawn_by_seed(made: Path) -> None:
    """Each option alone and beside others, of models with random weights, which say little of any token."""
    model = txport.load(made)
    draw = random.Random(1)
    is_seq2seq = model.facts.task == "seq2seq"
    more: dict[str, Any] = {"alignment": (None, "soft", "hard"), "prefix": ((), (), (12, 13))} if is_seq2seq else {}
    cases = [([draw.randrange(4, 20) for _ in range(draw.randrange(1, 9))], drawn(seed, more)) for seed in range(60)]
    if not is_seq2seq:  # more than a first cache holds, and a prompt that is filled in by parts
        cases += [([5, 9], {"max_new_tokens": 50, "min_new_tokens": 40}), ([7, 5] * 29, {"beams": 2})]
    answered = on_node(made, [("search", source, sent(options)) for source, options in cases])
    for (source, options), theirs in zip(cases, answered, strict=True):
        assert "error" not in theirs, (options, theirs)
        require_same(theirs, found_by(model, source, dict(options)), (source, options))


def test_caches_grow_to_the_longest_sequence_and_no_further(tmp_path: Path) -> None:
    """A table of rotary positions has no more places."""
    bundle = unproven("preset:llama-tiny", tmp_path / "made", target="cpu")
    model = txport.load(bundle.path)
    longest = model.facts.writes.longest
    cases = [[5, 9] * (longest // 2 - 2), [7]]
    options = {"max_new_tokens": 4, "min_new_tokens": 4}, {"max_new_tokens": longest - 1, "min_new_tokens": longest - 1}
    answered = on_node(bundle.path, [("search", source, how) for source, how in zip(cases, options, strict=True)])
    for source, how, theirs in zip(cases, options, answered, strict=True):
        assert "error" not in theirs, theirs
        require_same(theirs, found_by(model, source, dict(how)), source)


def test_text_of_a_causal_model_without_a_tokenizer(tmp_path: Path) -> None:
    """Its numbers have no space before them."""
    bundle = unproven("preset:gpt2-tiny", tmp_path / "made")
    model = txport.load(bundle.path)
    generated, grown = on_node(bundle.path, [(method, "5 9", {"max_new_tokens": 4}) for method in ("generate", "grow")])
    assert generated["output"] == model.generate("5 9", max_new_tokens=4)[0].output
    assert [each["output"] for each in grown] == list(model.stream("5 9", max_new_tokens=4))


def test_experts(tmp_path: Path) -> None:
    """ONNX Runtime 1.30 kills the process if a prompt names no place whose logits it wants."""
    bundle = unproven("preset:llama-experts-tiny", tmp_path / "made", target="cpu")
    (theirs,) = on_node(bundle.path, [("search", [5, 9, 7], {"max_new_tokens": 6})])
    require_same(theirs, found_by(txport.load(bundle.path), [5, 9, 7], {"max_new_tokens": 6}), "experts")


@pytest.fixture(scope="module")
def g2p() -> tuple[Path, txport.Model]:
    return find_bundle("g2p-en").path, txport.load("g2p-en")


@pytest.fixture(scope="module")
def few_bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """g2p-en in portable bundles of few bits."""
    folder = tmp_path_factory.mktemp("few-bits")
    made = {each: unproven("g2p-en", folder / each, target="portable", precision=each) for each in ("int8", "int4")}
    return {precision: bundle.path for precision, bundle in made.items()}


@pytest.mark.parametrize("way", WAYS)
def test_500_words_on_node(g2p: tuple[Path, txport.Model], way: str) -> None:
    bundle, model = g2p
    chosen = words(500 if way == "greedy" else 100)
    answered = on_node(bundle, [("generate", word, WAYS[way]) for word in chosen], load={"threads": 1})
    for ours, theirs in zip(model.generate(chosen, **WAYS[way]), answered, strict=True):
        require_same(theirs["hypotheses"], [vars(each) for each in ours.hypotheses], ours.input)
        assert (theirs["output"], theirs["input"]) == (ours.output, ours.input)


@pytest.mark.parametrize("web", [False, True], ids=["node", "wasm"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_words_in_few_bits_of_standard_operators(precision: str, web: bool, few_bits: dict[str, Path]) -> None:
    """Other builds of ONNX Runtime may round activations of a product otherwise, so a word in 50 may differ."""
    bundle = few_bits[precision]
    chosen = words(50)
    answered = on_node(bundle, [("generate", word, {}) for word in chosen], web=web)
    ours = [each.output for each in txport.load(bundle).generate(chosen)]
    assert sum(theirs["output"] == output for theirs, output in zip(answered, ours, strict=True)) >= len(ours) - 1
    assert len(set(ours)) == len(ours)


def test_words_in_chromium(g2p: tuple[Path, txport.Model]) -> None:
    """In a page, over WebAssembly; texts that are asked for at once wait for one another."""
    bundle, model = g2p
    chosen = words(12)
    requests: list[list[Any]] = [["generate", word, WAYS[way]] for way in ("greedy", "beams") for word in chosen]
    (answered,) = in_chromium(bundle, [{"requests": [*requests, ["together", chosen[:3]]]}])
    ours = [each for way in ("greedy", "beams") for each in model.generate(chosen, **WAYS[way])]
    for theirs, each in zip(answered, ours, strict=False):
        require_same(theirs["hypotheses"], [vars(one) for one in each.hypotheses], each.input)
    assert answered[-1] == [each.output for each in ours[:3]]


def test_what_grows_is_what_python_streams(g2p: tuple[Path, txport.Model]) -> None:
    bundle, model = g2p
    given: list[tuple[str, dict[str, Any]]]
    given = [("phonetics", {}), ("attention", {"beams": 4}), ("a", {"max_new_tokens": 1})]
    requests = [("grow", word, options) for word, options in given]
    for (word, options), theirs in zip(given, on_node(bundle, requests), strict=True):
        assert [each["output"] for each in theirs] == list(model.stream(word, **options))


def test_a_search_ends_where_it_is_left_or_cancelled(g2p: tuple[Path, txport.Model]) -> None:
    bundle, model = g2p
    requests = [("leave", "hello"), ("cancel", "hello", {}), ("cancel", "hello", {"beams": 3}), ("cancelled", "hello")]
    left, *cancelled = on_node(bundle, requests)
    whole = model.generate("hello")[0].output
    assert left == [whole.split()[0], whole]
    first = {"error": "Error", "message": whole.split()[0]}
    assert cancelled == [first, first, {"error": "Error", "message": "before it began"}]


def test_a_tokenizer_of_a_library_reads_what_the_package_does_not(tmp_path: Path) -> None:
    library = transformers_js.tokenizers()
    words = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.BPEDecoder("</w>")
    texts = ["the cat sat", "a cat ate the hat", "that heat"]
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=40, special_tokens=special, end_of_word_suffix="</w>")
    )
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    sizes = {"source_vocab_size": words.get_vocab_size(), "target_vocab_size": words.get_vocab_size()}
    save_checkpoint(tmp_path / "checkpoint", tiny_model(tiny_config(**sizes)), words.to_str())
    bundle = unproven(tmp_path / "checkpoint", tmp_path / "bundle").path
    drawn_so = {"do_sample": True, "seed": 5, "nbest": 3}
    expected = [[one.output for one in each.hypotheses] for each in txport.load(bundle).generate(texts, **drawn_so)]
    requests = [("generate", text, drawn_so) for text in texts]
    answered = on_node(bundle, requests, library=library)
    assert [[one["output"] for one in each["hypotheses"]] for each in answered] == expected
    assert len({output for outputs in expected for output in outputs}) > 1
    (refusal,) = on_node(bundle, requests[:1])
    assert "does not read a tokenizer with a BPE model" in refusal["message"]
    assert refusal["message"].endswith("such as transformers.js has, or token ids to search()")
