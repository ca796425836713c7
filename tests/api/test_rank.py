"""Pairs of texts are read as one input, in every target; rerankers order texts by their scores for a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import txport
from tests.seeded import bundle_of, saved
from txport.api.encoding import Ranked
from txport.bulk import Batch
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.cli import cli
from txport.errors import ConfigError, LongTextError, TextError, UnsupportedError
from txport.models.architectures.bert import BertConfig
from txport.text.file import fitting
from txport.text.load import load_tokenizer
from txport.text.numbers import NumberTokenizer

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *"abcdefgh"]
SIZES = {"vocab_size": len(WORDS), "d_model": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 2, "max_length": 12}
IDS = {"cls_id": 1, "sep_id": 2, "mask_id": 3}
QUERY, TEXTS = "a b", ["c", "a b", "h g f e d c b a", "b"]
KINDS = [("portable", "fp32"), ("portable", "fp16"), ("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4")]


def reranker(folder: Path, labels: tuple[str, ...] = ("score",), types: int = 2) -> Checkpoint:
    config = BertConfig(**SIZES, **IDS, head="labels", labels=labels, token_types=types)
    checkpoint = saved(config, folder)
    made = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    special = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=special)
    made.save(str(folder / "tokenizer.json"))
    return checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    reranker(folder)
    return folder


def ids_of(text: str, other: str) -> tuple[list[int], list[int]]:
    """The ids of a pair and their types, by hand."""
    first, second = (["[CLS]", *text.split(), "[SEP]"], [*other.split(), "[SEP]"])
    return [WORDS.index(word) for word in (*first, *second)], [0] * len(first) + [1] * len(second)


@pytest.mark.parametrize(("target", "precision"), KINDS)
def test_scores_of_pairs_are_those_of_the_checkpoint(target: str, precision: str, folder: Path, tmp_path: Path) -> None:
    bundle = txport.export(folder, tmp_path / "out", target=target, precision=precision)
    assert bundle.manifest.parity["verdict"] == "pass"
    model = txport.load(bundle.path)
    torch_model = txport.load(bundle.path, runtime="torch", checkpoint=str(folder))
    found, expected = scores_of(model), scores_of(torch_model)
    assert found == pytest.approx(expected, abs=1e-5 if precision == "fp32" else 0.1)
    swapped = [labels[0].score for labels in model.classify([("a b", QUERY), (QUERY, "c"), ("c", QUERY)])]
    assert swapped[1] != pytest.approx(swapped[2], abs=1e-3)
    ranked = model.rank(QUERY, TEXTS)
    assert ranked == sorted((Ranked(at, TEXTS[at], found[at]) for at in range(len(TEXTS))), key=lambda one: -one.score)
    assert model.rank(QUERY, TEXTS, top=2) == ranked[:2]
    assert model.rank(QUERY, iter([])) == []


def test_other_programs_give_types_by_the_port_of_transformers(folder: Path, tmp_path: Path) -> None:
    bundle = txport.export(folder, tmp_path / "out")
    session = onnxruntime.InferenceSession(str(bundle.path / "onnx" / "model.onnx"))
    ids, types = ids_of(QUERY, "c d")
    given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
    assert {port.name for port in session.get_inputs()} == given.keys()
    (logits,) = session.run(["logits"], {name: np.array([each]) for name, each in given.items()})
    (score,) = txport.load(bundle.path).classify([(QUERY, "c d")])[0]
    assert float(torch.sigmoid(torch.from_numpy(logits))[0, 0]) == pytest.approx(score.score, abs=1e-6)
    settings = json.loads((bundle.path / "tokenizer_config.json").read_text())
    assert "token_type_ids" in settings["model_input_names"]


def test_a_folder_that_others_exported_reads_pairs_too(folder: Path, tmp_path: Path) -> None:
    bundle = txport.export(folder, tmp_path / "out")
    for name in ("txport.json", "golden.npz", "README.md"):
        (bundle.path / name).unlink()
    ours = txport.load(bundle_of(load_checkpoint(str(folder)), tmp_path / "cpu").path)
    assert scores_of(txport.load(bundle.path)) == pytest.approx(scores_of(ours), abs=1e-6)


def scores_of(model: txport.Model) -> list[float]:
    return [labels[0].score for labels in model.classify([(QUERY, text) for text in TEXTS], truncate=True)]


def test_the_ids_of_a_second_text_are_above_the_vocabulary(folder: Path) -> None:
    model = txport.load(bundle_of(load_checkpoint(str(folder)), folder.with_name("out"), "cpu").path)
    ids, types = ids_of("a", "b c")
    combined = [id_ + len(WORDS) * type_ for id_, type_ in zip(ids, types, strict=True)]
    assert model.encode(("a", "b c")) == combined
    assert model.encode("a b") == [1, 5, 6, 2]
    assert model.encode(("a", "b " * 50), truncate=True) == model.encode(("a", " ".join("b" * 8)))
    assert model.encode("a " * 50, truncate=True) == model.encode(" ".join("a" * 10))
    with pytest.raises(LongTextError, match=r"'a' with 'b b b.* tokens, the most is 12; truncate=True"):
        model.encode(("a", "b " * 50))
    wrong: list[Any] = [("a",), ("a", "b", "c"), ("a", 5), 5, None, {"a": "b"}]
    for each in wrong:
        with pytest.raises(TextError, match="a text must be a string or a pair of strings, got"):
            model.encode(each)
    with pytest.raises(TextError, match="the text is empty"):
        model.classify([("a", " ")])
    assert model.classify([("a", "b"), ("a", " ")], unknown="skip")[1] == []
    assert {each.index for each in model.rank("a", ["b", " ", "c"], unknown="skip")} == {0, 2}
    assert model.classify([("a", "\N{SNOWMAN}"), ("\N{SNOWMAN}", "a")], unknown="skip") == [[], []]
    assert model.encode(("a", " " * 200_000 + "b"), truncate=True) == model.encode(("a", "b"))
    with pytest.raises(TextError, match="a query must be a string, got 3"):
        model.rank(3, [])  # type: ignore[arg-type]
    with pytest.raises(TextError, match="is not UTF-8 text"):
        model.rank("\ud800", ["a"])
    with pytest.raises(TextError, match="token ids are not cut, and are no pair of texts"):
        reading(NumberTokenizer(model.facts), model).encode(("5", "6"))


def reading(tokenizer: Any, model: txport.Model) -> txport.Model:
    model.tokenizer = tokenizer
    return model


def test_pairs_are_for_classifiers(tmp_path: Path) -> None:
    config = BertConfig(**SIZES, **IDS, head="hidden")
    model = txport.load(bundle_of(saved(config, tmp_path / "folder"), tmp_path / "out").path)
    with pytest.raises(TextError, match=r"a text must be a string, got \('a', 'b'\)"):
        model.embed([("a", "b")])


NLI = ("contradiction", "entailment", "neutral")


def inference(folder: Path, labels: tuple[str, ...]) -> Any:
    """A bundle of a classifier of pairs with its tokenizer, in the folder "out"."""
    reranker(folder / "folder", labels)
    return bundle_of(load_checkpoint(str(folder / "folder")), folder / "out")


def test_other_labels_are_hypotheses_of_a_model_of_inference(tmp_path: Path) -> None:
    model = txport.load(inference(tmp_path, NLI).path)
    texts, labels = ["a b", "h g f e d c b a a a a", "c"], ["d", "e f", "g"]
    logits = np.stack([found["logits"] for found in model.infer(pairs_of(texts, labels, "a {}"), truncate=True)])
    logits = logits.reshape(len(texts), len(labels), len(NLI)).astype(np.float64)
    entailed = np.exp(logits[..., 1])
    exclusive = entailed / entailed.sum(axis=1, keepdims=True)
    alone = entailed / (entailed + np.exp(logits[..., 0]))
    for expected, several in ((exclusive, False), (alone, True)):
        found = model.classify(iter(texts), labels=labels, template="a {}", multi_label=several)
        for row, one in zip(expected, found, strict=True):
            assert {each.label: each.score for each in one} == pytest.approx(dict(zip(labels, row, strict=True)))
            assert [each.score for each in one] == sorted((each.score for each in one), reverse=True)
    assert model.classify(texts, labels=["d"], template="a {}")[0][0].score == pytest.approx(alone[0, 0])
    (first, *_) = model.classify("a b", labels=labels, template="a {}", top=2)
    assert [each.label for each in first] == [labels[at] for at in np.argsort(-exclusive[0])[:2]]
    rows = Batch(tmp_path / "out", labels=labels, template="a {}").outputs(pa.array(texts)).to_pylist()
    assert [row["error"] for row in rows] == [None] * 3, "a text that is too long is cut, as by `classify`"
    assert model.classify(["\N{SNOWMAN}", "a"], labels=["d"], unknown="skip")[0] == []
    assert model.classify([], labels=["d"]) == []
    asked = ["run", str(tmp_path / "out"), "a b", "--label", "d", "--label", "e f", "--template", "a {}"]
    best = model.classify("a b", labels=["d", "e f"], template="a {}")[0]
    assert CliRunner().invoke(cli, asked).output == f"{best[0].label}\n"
    shown = CliRunner().invoke(cli, [*asked, "--multi-label", "--top", "1"]).output.split("\t")
    assert shown[1].strip() in ("d", "e f")
    for more, message in ((["--pairs"], "--pairs can't be combined with --label"), (["--template", "a"], "one {}")):
        refused = CliRunner().invoke(cli, [*asked, *more])
        assert message in str(refused.exception)
    refused = CliRunner().invoke(cli, ["run", str(tmp_path / "out"), "a", "--multi-label"])
    assert "--multi-label needs a --label" in str(refused.exception)


def pairs_of(texts: list[str], labels: list[str], template: str) -> list[tuple[str, str]]:
    return [(text, template.replace("{}", label)) for text in texts for label in labels]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": []}, "labels must be different strings, at least one, got \\[\\]"),
        ({"labels": ["a", "a"]}, "labels must be different strings"),
        ({"labels": "a"}, "labels must be a list of strings, got 'a'"),
        ({"labels": ["a"], "template": "a"}, "template must have one {} for the label, as in 'This example is {}.'"),
        ({"labels": ["a"], "multi_label": 2}, "multi_label"),
        ({"multi_label": True}, "template and multi_label are for given labels"),
    ],
)
def test_labels_that_are_none_are_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = txport.load(inference(tmp_path, NLI).path)
    with pytest.raises(UnsupportedError, match=message):
        model.classify("a", **given)


@pytest.mark.parametrize(("labels", "several"), [(("good", "bad"), False), (("entailment", "a", "b"), True)])
def test_other_labels_need_entailment(labels: tuple[str, ...], several: bool, tmp_path: Path) -> None:
    model = txport.load(inference(tmp_path, labels).path)
    with pytest.raises(UnsupportedError, match="takes no others: use a model of natural language inference"):
        model.classify("a", labels=["b", "c"], multi_label=several)


WORDS_OF = st.lists(st.sampled_from("abc"), min_size=1, max_size=30).map(" ".join)
PAIRS_OF = ["[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP] [SEP] $B [SEP]", "$A $B:1"]


@given(WORDS_OF, st.none() | WORDS_OF, st.integers(5, 40), st.sampled_from(PAIRS_OF))
def test_texts_are_cut_as_the_tokenizers_library_cuts_them(text: str, other: str | None, most: int, pair: str) -> None:
    made = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("[CLS]", 1), ("[SEP]", 2)]
    single = pair.partition(" [SEP]")[0] if "[" in pair else "$A"
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    texts = [text] if other is None else [text, other]
    whole = made.encode(*texts)
    kept = fitting(whole.sequence_ids, most)
    made.enable_truncation(most)
    cut = made.encode(*texts)
    assert [whole.ids[at] for at in kept] == cut.ids
    assert [whole.type_ids[at] for at in kept] == cut.type_ids


def test_a_tokenizer_of_more_types_is_refused(folder: Path, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(folder)), tmp_path / "out", "cpu")
    model = txport.load(bundle.path)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", pair="$A $B:2", special_tokens=special)
    made.save(str(tmp_path / "tokenizer.json"))
    model.tokenizer = load_tokenizer(tmp_path, model.facts)
    with pytest.raises(TextError, match="the tokenizer gives tokens the type 2; the model has the types 0 and 1"):
        model.encode(("a", "b"))


def test_a_model_of_several_labels_ranks_nothing(tmp_path: Path) -> None:
    reranker(tmp_path / "folder", ("no", "yes"))
    model = txport.load(bundle_of(load_checkpoint(str(tmp_path / "folder")), tmp_path / "out", "portable").path)
    assert len(model.classify([("a", "b")])[0]) == 2
    with pytest.raises(UnsupportedError, match="rank needs a model with one label, not 2: use classify"):
        model.rank("a", ["b"])


@pytest.mark.parametrize(("types", "segment"), [(1, True), (2, False)])
def test_types_need_an_embedding(types: int, segment: bool) -> None:
    with pytest.raises(ConfigError, match="token_types must be 0, or 2 or more with segment"):
        BertConfig(**SIZES, **IDS, head="labels", labels=("a",), token_types=types, segment=segment)


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(folder)), tmp_path / "out", "cpu").path
    ranked = txport.load(bundle).rank(QUERY, TEXTS)

    def call(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli, arguments, input=text)
        return done.exit_code, done.stdout, done.stderr

    rows = "".join(f"{each.score:.4f}\t{each.text}\n" for each in ranked)
    cut = "txport: 1 text was cut to what the model takes\n"
    assert call("rank", str(bundle), QUERY, *TEXTS) == (0, rows, cut)
    assert call("rank", str(bundle), QUERY, text="\n".join(TEXTS)) == (0, rows, cut)
    code, out, _ = call("rank", str(bundle), QUERY, *TEXTS, "--top", "1", "--json")
    assert (code, json.loads(out)) == (0, vars(ranked[0]))
    by_index = {each.index: each for each in ranked}
    lines = "".join(f"{QUERY}\t{text}\n" for text in TEXTS)
    expected = "".join(f"{by_index[at].score:.4f}\tscore\n" for at in range(len(TEXTS)))
    assert call("run", str(bundle), "--pairs", "--truncate", text=lines) == (0, expected, cut)
    for flags in (["--pairs", *[lines.splitlines()[2]]], ["--pairs", "a b"], ["--ids", "--pairs", "5\t6"]):
        assert isinstance(CliRunner().invoke(cli, ["run", str(bundle), *flags]).exception, TextError)
