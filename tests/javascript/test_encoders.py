"""Models that only encode, in JavaScript: vectors, labels and tokens for masks are those that Python finds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

import txport
from tests import transformers_js
from tests.javascript import in_chromium, on_node
from tests.models.architectures.test_bert import VOCABULARY, model_of, tiny, word_pieces
from tests.recorded import ANSWERS, EXPECTED_ANSWERS
from tests.seeded import bundle_of
from tests.tiny import unproven
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import UnknownTextError

HEADS = {"hidden": "embed", "labels": "classify", "token_labels": "tag", "tokens": "fill", "spans": "answer"}
TEXTS = ["Good [MASK] b zz", "a b c[MASK][MASK] a", "bad ##d [MASK] ."]
WAYS: dict[str, list[dict[str, Any]]] = {
    "embed": [{}, {"pooling": "mean"}, {"pooling": "first", "normalize": True}, {"pooling": "none"}]
    + [{"pooling": each, "dimensions": 5} for each in ("last", "max", "weighted-mean", "none")],
    "classify": [{}, {"top": 2}],
    "tag": [{}],
    "fill": [{}, {"top": 99}],
    "answer": [],  # takes a pair of texts
}


def whole_words() -> str:
    """A tokenizer of whole words, which the package reads by itself, with BERT's special tokens."""
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))  # noqa: S106
    tokenizer.add_special_tokens(list(VOCABULARY[:5]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return str(tokenizer.to_str())


def letters(**strips: bool) -> str:
    """The same of letters, with a mask that takes spaces beside it, as RoBERTa's does."""
    tokenizer = Tokenizer.from_str(whole_words())
    tokenizer.add_special_tokens([AddedToken("[MASK]", special=True, **strips)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return str(tokenizer.to_str())


def made(folder: Path, head: str, target: str, tokenizer: str | None, seed: int = 0, **changes: Any) -> Path:
    save_checkpoint(folder / "checkpoint", model_of(tiny(head, **changes), seed), tokenizer)
    return unproven(folder / "checkpoint", folder / "bundle", target=target).path


def python_says(bundle: Path, method: str, text: str, options: dict[str, Any]) -> Any:
    """As JSON tells it."""
    (found,) = getattr(txport.load(bundle), method)([text], **options)
    if method == "embed":
        return np.ravel(found).tolist()
    return [[asdict(each) for each in one] if method == "fill" else asdict(one) for one in found]


def require_same(theirs: Any, ours: Any) -> None:
    """Equal, numbers up to 1e-5."""
    assert type(theirs) is type(ours) or {type(theirs), type(ours)} == {int, float}, (theirs, ours)
    if isinstance(ours, float | int):
        assert theirs == pytest.approx(ours, abs=1e-5)
    elif isinstance(ours, str):
        assert theirs == ours
    else:
        assert len(theirs) == len(ours)
        keys = ours.keys() if isinstance(ours, dict) else range(len(ours))
        for key in keys:
            require_same(theirs[key], ours[key])


def asked(method: str, texts: list[str]) -> list[tuple[str, str, dict[str, Any]]]:
    return [("vector" if method == "embed" else method, text, how) for text in texts for how in WAYS[method]]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_every_head_on_node(target: str, head: str, tmp_path: Path) -> None:
    """Texts of whole words, masks in any place, and the raw outputs."""
    bundle = made(tmp_path, head, target, whole_words())
    method = HEADS[head]
    requests = asked(method, TEXTS)
    *answered, theirs = on_node(bundle, [*requests, ("outputs", TEXTS[0])])
    for (_, text, how), each in zip(requests, answered, strict=True):
        require_same(each, python_says(bundle, method, text, how))
    (ours,) = txport.load(bundle).infer([TEXTS[0]])
    for name, array in ours.items():
        assert tuple(theirs[name]["dims"]) == array.shape
        np.testing.assert_allclose(theirs[name]["data"], array.ravel(), atol=1e-5)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_graph_that_pools(target: str, tmp_path: Path) -> None:
    """Its vector is used, cut and normalised again; other poolings are refused as in Python."""
    steps = ("max", "dense 6 tanh", "normalize")
    bundle = made(tmp_path, "hidden", target, whole_words(), sentence=steps)
    ways: list[dict[str, Any]] = [{}, {"dimensions": 3}, {"pooling": "none", "dimensions": 9}]
    *answered, other, longer, large = on_node(
        bundle,
        [
            *(("vector", text, how) for text in TEXTS for how in ways),
            *(("vector", TEXTS[0], how) for how in ({"pooling": "mean"}, {"normalize": False}, {"dimensions": 7})),
        ],
    )
    for at, each in enumerate(answered):
        require_same(each, python_says(bundle, "embed", TEXTS[at // len(ways)], ways[at % len(ways)]))
    assert "has the pooling 'max' or 'none', got 'mean'" in other["message"]
    assert "normalize must be true, got false" in longer["message"]
    assert "dimensions must be a whole number from 1 to 6, got 7" in large["message"]


def test_every_head_in_chromium(tmp_path: Path) -> None:
    """Each in the same page."""
    bundles = {}
    runs = []
    for head, method in HEADS.items():
        (tmp_path / head).mkdir()
        bundles[head] = made(tmp_path / head, head, "cpu", whole_words())
        runs.append({"bundle": f"/bundle/{head}/bundle", "requests": asked(method, TEXTS[:1])})
    for (head, bundle), run, answered in zip(bundles.items(), runs, in_chromium(tmp_path, runs), strict=True):
        for (_, text, how), each in zip(run["requests"], answered, strict=True):
            require_same(each, python_says(bundle, HEADS[head], text, how))


def test_without_a_tokenizer_texts_are_token_ids(tmp_path: Path) -> None:
    bundle = made(tmp_path, "tokens", "portable", None)
    text = "5 3 7"
    answer = python_says(bundle, "fill", "5 3 7", {})
    as_text, as_ids = on_node(bundle, [("fill", text), ("fill", txport.load(bundle).encode(text))])
    require_same(as_text, answer)
    assert as_ids == as_text


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_ids_above_the_vocabulary_are_of_a_second_text(target: str, tmp_path: Path) -> None:
    bundle = made(tmp_path, "labels", target, None, segment=True, token_types=2)
    model = txport.load(bundle)
    size = model.facts.vocabulary.size
    texts = ["5 3 7", f"5 3 {7 + size}"]
    found = on_node(bundle, [*(("classify", model.encode(text)) for text in texts), ("classify", [2 * size])])
    for text, theirs in zip(texts, found, strict=False):
        require_same(theirs, python_says(bundle, "classify", text, {}))
    assert found[0] != found[1]
    assert f"token ids in 0 to {2 * size - 1}" in found[2]["message"]


@pytest.mark.parametrize("types", [2, 0])
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_pairs_of_texts_are_classified_and_ranked(target: str, types: int, tmp_path: Path) -> None:
    """With the types of BERT, or without them and with two tokens between the texts, as in RoBERTa."""
    library = transformers_js.tokenizers()
    parts = json.loads(word_pieces())
    between, second = ([], 1) if types else ([sequence("[SEP]", 0)], 0)
    parts["post_processor"]["pair"] = [
        *parts["post_processor"]["single"],
        *between,
        {"Sequence": {"id": "B", "type_id": second}},
        sequence("[SEP]", second),
    ]
    bundle = made(tmp_path, "labels", target, json.dumps(parts), labels=("score",), segment=True, token_types=types)
    model = txport.load(bundle)
    pairs = [("good b", "bad a"), ("bad a", "good b"), ("a", "zz")]
    query, texts = "good", ["badly a", "b", "good b .", "badly b . " * 9]
    requests = [*(("classify", pair) for pair in pairs), ("rank", query, texts), ("rank", query, texts, {"top": 1})]
    *labels, ranked, best = on_node(bundle, requests, library=library)
    for theirs, ours in zip(labels, model.classify(pairs), strict=True):
        require_same(theirs, [asdict(each) for each in ours])
    require_same(ranked, [asdict(each) for each in model.rank(query, texts)])
    assert best == ranked[:1]
    assert labels[0] != labels[1]
    long = [("badly " * count, ["a " * 40, "a b . " * 3, "zz", "good b " * 9]) for count in (4, 5, 6, 20)]
    ways: list[dict[str, Any]] = [{}, {"unknown": "skip"}]
    found = on_node(bundle, [("rank", *each, how) for each in long for how in ways], library=library)
    for at, theirs in enumerate(found):
        require_same(theirs, [asdict(each) for each in model.rank(*long[at // 2], **ways[at % 2])])
    nothing, *wrong = on_node(
        bundle, [("rank", query, []), ("rank", 5, texts), ("rank", query, "a"), ("rank", query, [5])]
    )
    assert nothing == []
    assert {each["message"] for each in wrong} == {"rank needs a query and an array of texts, all strings"}
    (refusal,) = on_node(bundle, [("classify", pairs[0])])
    assert "a pair of texts needs load(bundle, { tokenizer })" in refusal["message"]


ANSWERING = {"bert": "portable", "roberta": "cpu", "deberta-v2": "cpu", "qwen2": "portable", "t5": "cpu", "bart": "cpu"}


@pytest.mark.parametrize(("name", "target"), ANSWERING.items())
def test_answers_are_those_of_python(name: str, target: str, tmp_path: Path) -> None:
    """By tokenizers of words, of bytes and of Unigram; in windows whose edges cut words; of changed letters."""
    library = transformers_js.tokenizers()
    bundle = bundle_of(load_checkpoint(str(ANSWERS / name)), tmp_path / "bundle", target).path
    model = txport.load(bundle)
    recorded = json.loads((ANSWERS / name / EXPECTED_ANSWERS).read_text(encoding="utf-8"))
    pairs = list(dict.fromkeys((each["question"], each["context"]) for each in recorded))
    line = " " if name in ("deberta-v2", "t5") else "\n"  # the map of the library makes it a blank
    pairs.append(("who", f"It\u2019s  (na\u00efve) Ada's caf\u00e9, \u00dcber-42. {line} \u4f60\u597d!  " * 4))
    ways: list[dict[str, Any]] = [{}, {"nbest": 20}, {"impossible": True, "nbest": 3}]
    ways += [{"window": 40, "stride": stride, "longest": 3, "nbest": 9} for stride in (0, 1, 2, 3)]
    asked = [(pair, how) for pair in pairs for how in ways]
    *found, long, number, text, option, skip = on_node(
        bundle,
        [
            *(("answer", *pair, how) for pair, how in asked),
            ("answer", "who is it " * 40, "Ada"),
            ("answer", "who", "Ada", {"nbest": 0}),
            ("answer", "who", 5),
            ("answer", "who", "Ada", {"top": 1}),
            ("answer", "who", "Ada", {"unknown": "skip"}),
        ],
        library=library,
    )
    for (pair, how), theirs in zip(asked, found, strict=True):
        require_same(theirs, [asdict(each) for each in model.answer(*pair, **how)])
    assert "leaves 0 of 64 tokens of a window for the context" in long["message"]
    assert number["message"] == "nbest must be a whole number from 1 on, got 0"
    assert text["message"].startswith("a question and its context must be strings")
    assert option["message"].startswith("unknown option 'top'; supported: unknown, special, nbest")
    assert "leaves out text in which answers are looked for" in skip["message"]


def sequence(token: str, type_id: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": type_id}}


def test_a_single_label_has_an_opposite(tmp_path: Path) -> None:
    bundle = made(tmp_path, "token_labels", "portable", None, seed=26, labels=("replaced",))
    texts = [f"{one} {other} 4" for one in range(5, 15) for other in (4, 6)]
    found = on_node(bundle, [("tag", text) for text in texts])
    for text, theirs in zip(texts, found, strict=True):
        require_same(theirs, python_says(bundle, "tag", text, {}))
    assert {each["label"] for tags in found for each in tags} == {"replaced", "original"}


@pytest.mark.parametrize("head", ["token_labels", "tokens"])
def test_tokens_are_the_vocabularys_whatever_reads_them(head: str, tmp_path: Path) -> None:
    """By a library, and, without one, for token ids: pieces of words are named as in Python."""
    library = transformers_js.tokenizers()
    bundle = made(tmp_path, head, "portable", word_pieces())
    method = HEADS[head]
    text = f"badly {'[MASK] ' * (head == 'tokens')}a"
    ours = python_says(bundle, method, text, {})
    assert any("##" in each for each in json.dumps(ours).split('"'))
    (read,) = on_node(bundle, [(method, text)], library=library)
    require_same(read, ours)
    by_ids, refusal = on_node(bundle, [(method, txport.load(bundle).encode(text)), (method, text)])
    assert by_ids == read
    assert refusal["message"].endswith("such as transformers.js has, or token ids in place of the text")


@pytest.mark.parametrize("head", [head for head in HEADS if head != "spans"])
def test_a_text_of_which_nothing_is_left(head: str, tmp_path: Path) -> None:
    """Has the same empty result as in Python."""
    bundle = made(tmp_path, head, "portable", letters())
    method = HEADS[head]
    skip = {"unknown": "skip"}
    model = txport.load(bundle)
    both = {**skip, "pooling": "none"} if method == "embed" else skip
    asked = ("vector" if method == "embed" else method, "!", both)
    assert on_node(bundle, [("infer", "!", skip), asked]) == [{}, []]
    assert list(model.infer(["!"], unknown="skip")) == [{}]
    (ours,) = getattr(model, method)(["!"], **both)
    assert len(ours) == 0
    if method == "embed":
        (refusal,) = on_node(bundle, [("vector", "!", skip)])
        assert refusal["error"] == "UnknownTextError"
        with pytest.raises(UnknownTextError):
            model.embed(["!"], unknown="skip")


@pytest.mark.parametrize("strips", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {}])
def test_a_mask_takes_the_spaces_that_python_gives_it(strips: dict[str, bool], tmp_path: Path) -> None:
    bundle = made(tmp_path, "tokens", "portable", letters(**strips))
    texts = ["a \n[MASK]  b", "[MASK] [MASK]", " [MASK] ", "a[MASK]b"]
    model = txport.load(bundle)
    for special in (False, True):
        theirs = on_node(bundle, [("encode", text, "token", special) for text in [*texts, "a [UNK][MASK]"]])
        assert theirs == [model.encode(text, "token", special) for text in [*texts, "a [UNK][MASK]"]]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    bundle = made(tmp_path, "tokens", "portable", whole_words())
    elsewhere = "is not for this encoder-only model with the outputs logits: use fill or infer"
    refusals: list[tuple[tuple[Any, ...], str]] = [
        (("fill", "good b"), "'good b' has no mask token; insert [MASK]"),
        (("fill", "good [MASK]", {"top": 0}), "top must be a whole number from 1 on, got 0"),
        (("fill", "[MASK]", {"count": 1}), "unknown option 'count'; supported: unknown, special, top"),
        (("tag", "good"), f"tag {elsewhere}"),
        (("generate", "good"), f"generate {elsewhere}"),
        (("fill", [1, 2.5]), "a source must be a list of token ids in 0 to 15, got [1,2.5]"),
        (("fill", ["good", "[MASK]"]), 'a text must be a string, got ["good","[MASK]"]; call once for each text'),
    ]
    answered = on_node(bundle, [request for request, _ in refusals])
    assert [each["message"] for each in answered] == [message for _, message in refusals]


@pytest.mark.parametrize("head", ["hidden", "token_labels"])
def test_two_texts_are_no_pair_where_a_model_reads_none(head: str, tmp_path: Path) -> None:
    """By a library's tokenizer, which would join them."""
    bundle = made(tmp_path, head, "portable", word_pieces())
    (found,) = on_node(bundle, [(HEADS[head], ["good b", "bad a"])], library=transformers_js.tokenizers())
    message = 'a text must be a string, got ["good b","bad a"]; call once for each text'
    assert found == {"error": "TextError", "message": message}


def test_prompts_are_put_before_texts(tmp_path: Path) -> None:
    made(tmp_path, "hidden", "portable", whole_words())
    own = {"pooling": "mean", "normalize": True, "prompts": {"query": "a b ", "text": ""}, "prompt": "query"}
    (tmp_path / "checkpoint" / "generation_config.json").write_text(json.dumps({**own, "include_prompt": False}))
    bundle = unproven(tmp_path / "checkpoint", tmp_path / "prompted", target="portable").path
    ways: list[dict[str, Any]] = [{}, {"prompt": "text"}, {"prompt": ""}, {"pooling": "first", "dimensions": 4}]
    *answered, wrong, ids, asked_ids, left = on_node(
        bundle,
        [
            *(("vector", "good", how) for how in (*ways, {"prompt": "x"})),
            ("vector", txport.load(bundle).encode("good"), {}),
            ("vector", [5, 6], {"prompt": "query"}),
            ("vector", "中", {"unknown": "skip"}),
        ],
    )
    for how, each in zip(ways, answered, strict=True):
        require_same(each, python_says(bundle, "embed", "good", how))
    assert answered[0] != answered[1]
    assert wrong["message"] == "prompt must be one of query, text, got 'x'"
    require_same(ids, answered[2])
    assert asked_ids["message"] == "prompt 'query' needs a tokenizer: this text is token ids"
    assert left["message"] == "'中' has no vector: nothing of it is left"


def test_a_pooling_that_there_is_not_is_refused(tmp_path: Path) -> None:
    bundle = made(tmp_path, "hidden", "portable", whole_words())
    first, second, third = on_node(
        bundle, [("vector", "a", {"pooling": "all"}), ("vector", "a", {"normalize": 1}), ("classify", "a")]
    )
    assert first["message"] == "pooling must be one of mean, first, last, max, weighted-mean, none, got 'all'"
    assert second["message"] == "normalize must be true or false, got 1"
    assert third["message"].startswith("classify is not for this encoder-only model with the outputs last_hidden_state")
