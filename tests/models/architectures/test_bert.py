"""BERT through the whole product: every head exports and is proven, and computes what others' programs compute."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import txport
from tests.called import Cli
from tests.tiny import edit_graph, unproven
from txport.api.encoding import likeliest, scores
from txport.bundles.bundle import load_bundle
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import ConfigError, UnknownTextError, UnsupportedError
from txport.models.architectures.bert import LABELLED, Bert, BertConfig
from txport.proof.bisect.culprit import bisect
from txport.targets import TARGETS
from txport.text.numbers import NumberTokenizer

ROOT = Path(__file__).parents[3]
NEAR = 1e-4
HEADS = ("hidden", "pooled", "tokens", "labels", "token_labels")
SHARED = {"encoder_layers": 4, "distinct_layers": 2}  # layers that share weights
KINDS = [(target, precision) for target, each in TARGETS.items() for precision in each.precisions]
WHOLE = [("portable", "fp32"), ("cpu", "int8"), ("cuda", "fp16")]  # each target: every head
PROVEN = [(head, kind) for kind in WHOLE for head in HEADS]
PROVEN += [(HEADS[at % len(HEADS)], kind) for at, kind in enumerate(kind for kind in KINDS if kind not in WHOLE)]
VOCABULARY = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a", "b", "c", "##d", "##e", "good", "bad", "##ly", ".")
LABELS = ("no", "perhaps", "yes")
TEXTS = ["good a", "b", "badly ad .", "a b c a b c a b c", "ce"]


def tiny(head: str, **changes: Any) -> BertConfig:
    sizes = {"d_model": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 2, "max_length": 24}
    values = {"vocab_size": len(VOCABULARY) + 2, **sizes, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    return BertConfig(**{**values, "head": head, "labels": LABELS if head in LABELLED else (), **changes})


def model_of(config: BertConfig, seed: int = 0, noise: float = 0.3) -> Bert:
    """Random weights with biases and norms that count."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Bert(config).eval()
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape))
    return model


def word_pieces() -> str:
    """A tokenizer like BERT's."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.add_special_tokens(list(VOCABULARY[:5]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return str(tokenizer.to_str())


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A portable bundle of each head, with a tokenizer and samples; its checkpoint lies beside it."""
    folder = tmp_path_factory.mktemp("bert")
    found = {}
    for head in HEADS:
        save_checkpoint(folder / head, model_of(tiny(head)), word_pieces())
        samples = "good [MASK] b\nbadly\n" if head == "tokens" else "good\nbadly a\n"
        (folder / head / "samples.txt").write_text(samples, encoding="utf-8")
        found[head] = txport.export(folder / head, folder / f"{head}-portable").path
    return found


def checkpoint_of(bundle: Path) -> Path:
    return bundle.parent / bundle.name.removesuffix("-portable")


@pytest.mark.parametrize(("head", "kind"), PROVEN, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_every_head_and_every_precision_is_proven(
    head: str, kind: tuple[str, str], bundles: dict[str, Path], tmp_path: Path
) -> None:
    """A head's graph is the same in all precisions of a target, so that one head stands for all in the others."""
    bundle = load_bundle(bundles[head])
    if kind != ("portable", "fp32"):
        bundle = txport.export(checkpoint_of(bundle.path), tmp_path / "out", target=kind[0], precision=kind[1])
    assert bundle.manifest.parity["verdict"] == "pass"
    assert (bundle.manifest.parity["rows_searched"] > 0) == (head not in ("hidden", "pooled"))


@pytest.mark.parametrize("kind", [("portable", "fp32"), ("cpu", "fp32"), ("cpu", "int8")], ids="-".join)
def test_layers_that_share_weights_hold_them_once(kind: tuple[str, str], tmp_path: Path) -> None:
    import onnx

    size = {}
    shared = {repeated: {**SHARED, "repeated": repeated} for repeated in ("runs", "cycles")}
    for name, changes in {**shared, "two": {}, "four": {"encoder_layers": 4}}.items():
        save_checkpoint(tmp_path / name, model_of(tiny("hidden", **changes)))
        bundle = unproven(tmp_path / name, tmp_path / f"{name}-out", target=kind[0], precision=kind[1])
        graph = onnx.load(str(bundle.file("model")), load_external_data=False).graph
        counted = [each for each in graph.initializer if len(each.dims) > 1]
        size[name] = len(counted), sum(int(np.prod(each.dims)) for each in counted)
    assert size["runs"] == size["cycles"]
    assert size["runs"][1] < size["four"][1]
    if kind[1] == "fp32":  # int8 has another form where several products read a matrix
        assert size["runs"] == size["two"]


def test_a_wrong_weight_that_layers_share_is_found(tmp_path: Path) -> None:
    def scale(model: Any) -> None:
        import onnx

        (tensor,) = (each for each in model.graph.initializer if each.name == "encoder.1.feed_forward.outer.weight")
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(1.1), tensor.name))

    save_checkpoint(tmp_path / "checkpoint", model_of(tiny("hidden", **SHARED)))
    bundle = unproven(tmp_path / "checkpoint", tmp_path / "out")
    checkpoint = str(tmp_path / "checkpoint")
    assert bisect(bundle, load_checkpoint(checkpoint)) is None
    damaged = edit_graph(bundle.path, "model", scale)
    assert not txport.api.model.parity(damaged, checkpoint, {"ort": "cpu"}).passed
    culprit = bisect(damaged, load_checkpoint(checkpoint))
    assert culprit is not None
    assert culprit.where == "encoder layer 1, feed-forward, second linear layer"
    assert culprit.also == (f"{culprit.where} (call 2)",)


def test_distances_are_the_bias_of_the_fused_attention(tmp_path: Path) -> None:
    import onnx

    operators = {}
    for name, changes in {"plain": {}, "biased": {"buckets": 8}}.items():
        save_checkpoint(tmp_path / name, model_of(tiny("hidden", **changes)))
        bundle = unproven(tmp_path / name, tmp_path / f"{name}-out", target="cpu")
        nodes = onnx.load(str(bundle.file("model")), load_external_data=False).graph.node
        attention = [each for each in nodes if each.op_type == "MultiHeadAttention"]
        operators[name] = [len(attention), *(len(each.input) > 5 and bool(each.input[5]) for each in attention)]
        assert "Softmax" not in {each.op_type for each in nodes}
    assert operators == {"plain": [2, False, False], "biased": [2, True, True]}


def test_vectors(bundles: dict[str, Path]) -> None:
    model = txport.load(bundles["hidden"])
    each = model.embed(TEXTS, pooling="none")
    assert [len(one) for one in each] == [len(model.encode(text)) for text in TEXTS]
    mean = model.embed(TEXTS)
    first = model.embed(TEXTS, pooling="first")
    assert mean.shape == first.shape == (len(TEXTS), 16)
    np.testing.assert_allclose(mean, [one.mean(axis=0) for one in each], atol=1e-6)
    np.testing.assert_array_equal(first, [one[0] for one in each])
    np.testing.assert_array_equal(model.embed(TEXTS, pooling="last"), [one[-1] for one in each])
    np.testing.assert_array_equal(model.embed(TEXTS, pooling="max"), [one.max(axis=0) for one in each])
    weighted = [(np.arange(1, len(one) + 1) @ one) / (len(one) * (len(one) + 1) / 2) for one in each]
    np.testing.assert_allclose(model.embed(TEXTS, pooling="weighted-mean"), weighted, atol=1e-6)
    np.testing.assert_array_equal(model.embed(TEXTS, dimensions=3), mean[:, :3])
    cut = model.embed(TEXTS, dimensions=3, normalize=True)
    np.testing.assert_allclose(cut, mean[:, :3] / np.linalg.norm(mean[:, :3], axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(UnsupportedError, match="dimensions must not exceed 16, got 17"):
        model.embed(TEXTS, dimensions=17)
    unit = model.embed(TEXTS, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert model.embed([]).shape == (0, 16)
    torch_model = txport.load(bundles["hidden"], runtime="torch", checkpoint=checkpoint_of(bundles["hidden"]))
    np.testing.assert_allclose(torch_model.embed(TEXTS), mean, atol=NEAR)


def test_prompts(bundles: dict[str, Path], call: Cli, tmp_path: Path) -> None:
    model = txport.load(bundles["hidden"])
    with pytest.raises(UnsupportedError, match="prompt must be left out, since the bundle has none, got 'query'"):
        model.embed("good", prompt="query")
    model.defaults |= {"prompts": {"query": "a b ", "text": ""}, "prompt": "query"}
    whole = model.embed("a b good", prompt="")
    np.testing.assert_array_equal(model.embed("good"), whole)
    np.testing.assert_array_equal(model.embed("good", prompt="text"), model.embed("good", prompt=""))
    with pytest.raises(UnsupportedError, match="prompt must be one of query, text, got 'x'"):
        model.embed("good", prompt="x")
    (other,) = model.embed("good", prompt="", pooling="none")
    model.defaults["include_prompt"] = False  # of [CLS] a b good [SEP], the last two are pooled
    (each,) = model.embed("a b good", prompt="", pooling="none")
    for pooling, vector in {"mean": each[3:].mean(axis=0), "first": each[3], "last": each[-1]}.items():
        np.testing.assert_allclose(model.embed("good", pooling=pooling)[0], vector, atol=1e-6)  # type: ignore[call-overload]
    with pytest.raises(UnknownTextError):
        model.embed("zz", unknown="skip")  # nothing of it is left, whatever the prompt
    model.defaults["prompts"]["odd"] = "zz a "  # of which one token is left
    odd = model.embed("good", prompt="odd", unknown="skip", pooling="first")
    (each,) = model.embed("a good", prompt="", pooling="none")
    np.testing.assert_array_equal(odd[0], each[2])
    ids, model.tokenizer = model.encode("good"), NumberTokenizer(model.facts, exact=True)
    np.testing.assert_array_equal(model.embed(" ".join(map(str, ids)), pooling="none")[0], other)
    with pytest.raises(UnsupportedError, match="prompt 'query' needs a tokenizer: these texts are token ids"):
        model.embed("5", prompt="query")
    cut = ("--dimensions", 3, "--prompt", "", "--output", tmp_path / "x.npy")
    assert call("run", bundles["hidden"], "good", "b", *cut).code == 0
    assert np.load(tmp_path / "x.npy").shape == (2, 3)
    assert call("run", bundles["hidden"], "good", "--prompt", "query").err.endswith("has none, got 'query'\n")


def test_labels(bundles: dict[str, Path]) -> None:
    model = txport.load(bundles["labels"])
    found = model.classify(TEXTS)
    logits = [each["logits"] for each in model.infer(TEXTS)]
    for labels, values in zip(found, logits, strict=True):
        assert [each.label for each in labels] == [LABELS[at] for at in np.argsort(-values)]
        assert [each.score for each in labels] == pytest.approx(sorted(scores(values, "softmax"), reverse=True))
        assert sum(each.score for each in labels) == pytest.approx(1)
    assert [each[0] for each in found] == [one for (one,) in model.classify(TEXTS, top=1)]
    assert len(model.classify("good")) == 1


def test_tags(bundles: dict[str, Path]) -> None:
    model = txport.load(bundles["token_labels"])
    (tags,) = model.tag("badly a")
    assert [each.token for each in tags] == ["bad", "##ly", "a"]
    logits = next(model.infer("badly a"))["logits"][1:-1]
    assert [each.label for each in tags] == [LABELS[at] for at in logits.argmax(axis=1)]


def test_a_discriminator_says_what_was_replaced_and_what_was_not(tmp_path: Path, call: Cli) -> None:
    save_checkpoint(tmp_path / "checkpoint", model_of(tiny("replaced", labels=("replaced",))), word_pieces())
    model = txport.load(txport.export(tmp_path / "checkpoint", tmp_path / "bundle").path)
    text = "good badly a b badly good a b"
    (tags,) = model.tag(text)
    logits = next(model.infer(text))["logits"][1:-1, 0]
    assert {each.label for each in tags} == {"original", "replaced"}
    assert [each.label == "replaced" for each in tags] == (logits >= 0).tolist()
    likely = 1 / (1 + np.exp(-np.abs(logits)))  # whichever it is
    assert [each.score for each in tags] == pytest.approx(likely)
    _, out, _ = call("run", tmp_path / "bundle", text)
    assert out.split() == [f"{each.token}/{each.label}" for each in tags]


def test_the_opposite_of_a_single_label() -> None:
    assert likeliest(np.array([0.5]), ["name"]) == ("name", 0.5)
    assert likeliest(np.array([0.25]), ["name"]) == ("not-name", 0.75)
    assert likeliest(np.array([0.3, 0.4, 0.3]), ["a", "b", "c"]) == ("b", 0.4)


def test_missing_tokens(bundles: dict[str, Path]) -> None:
    model = txport.load(bundles["tokens"])
    (masks,) = model.fill("good [MASK] [MASK].", top=3)
    ids = model.encode("good [MASK] [MASK].")
    assert ids[2:4] == [3, 3]
    logits = next(model.infer("good [MASK] [MASK]."))["logits"]
    for place, fills in zip((2, 3), masks, strict=True):
        assert [each.id for each in fills] == np.argsort(-logits[place])[:3].tolist()
    assert len(model.fill(["a [MASK]"])[0][0]) == 5
    with pytest.raises(txport.TxportError, match=r"'good' has no mask token; insert \[MASK\]"):
        model.fill("good")


def test_other_special_tokens_are_text(bundles: dict[str, Path]) -> None:
    """A mask is one only for models that fill them."""
    assert 3 not in txport.load(bundles["hidden"]).encode("a [MASK] b", "skip")
    assert txport.load(bundles["tokens"]).encode("a [SEP] b", "skip").count(2) == 1


@pytest.mark.parametrize(
    ("head", "asked", "told"),
    [
        (
            "hidden",
            "generate",
            "generate is not for this encoder-only model with the outputs last_hidden_state: use embed",
        ),
        ("labels", "embed", "embed is not for this encoder-only model with the outputs logits: use classify"),
        ("tokens", "classify", "use fill"),
        ("token_labels", "fill", "use tag"),
    ],
)
def test_what_a_model_is_not_for_is_refused(head: str, asked: str, told: str, bundles: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedError, match=told):
        getattr(txport.load(bundles[head]), asked)("a")


def test_scores_are_refused_and_a_generator_does_not_embed(bundles: dict[str, Path], bundle: Any) -> None:
    with pytest.raises(UnsupportedError, match="score is not for this encoder-only model"):
        list(txport.load(bundles["labels"]).score("a", "b"))
    with pytest.raises(UnsupportedError, match="embed needs an encoder-only model; this model generates"):
        txport.load(bundle.path).embed("bad")


def test_the_command_prints_what_the_model_is_for(bundles: dict[str, Path], tmp_path: Path, call: Cli) -> None:
    models = {head: txport.load(path) for head, path in bundles.items()}
    _, out, _ = call("run", bundles["labels"], *TEXTS)
    assert out.split() == [each[0].label for each in models["labels"].classify(TEXTS)]
    _, out, _ = call("run", bundles["labels"], "good", "--json", "--top", 2)
    shown = [dataclasses.asdict(each) for each in models["labels"].classify("good", top=2)[0]]
    assert json.loads(out) == {"input": "good", "labels": shown}
    _, out, _ = call("run", bundles["tokens"], "a [MASK]", "--top", 2)
    fills = models["tokens"].fill("a [MASK]", top=2)[0][0]
    assert out.splitlines() == [f"{each.score:.4f}\t{each.token}" for each in fills]
    _, out, _ = call("run", bundles["token_labels"], "badly")
    assert out.split() == [f"{each.token}/{each.label}" for each in models["token_labels"].tag("badly")[0]]
    _, out, _ = call("run", bundles["pooled"], *TEXTS, "--pooling", "first")
    np.testing.assert_array_equal(
        np.array([json.loads(line) for line in out.splitlines()], np.float32),
        models["pooled"].embed(TEXTS, pooling="first"),
    )
    assert call("run", bundles["hidden"], *TEXTS, "--normalize", "--output", tmp_path / "x.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), models["hidden"].embed(TEXTS, normalize=True))


EMPTY = {"hidden": {"vector": None}, "labels": {"labels": []}, "token_labels": {"tags": []}, "tokens": {"masks": []}}


@pytest.mark.parametrize("head", EMPTY)
def test_the_command_gives_texts_without_a_known_character_an_empty_output(
    head: str, bundles: dict[str, Path], tmp_path: Path, call: Cli
) -> None:
    known = "a [MASK]" if head == "tokens" else "a"
    (tmp_path / "lines.txt").write_text(f"{known}\n\nzzz\n{known}\n", encoding="utf-8")
    skipping = ("run", bundles[head], "--input", tmp_path / "lines.txt", "--unknown", "skip")
    top = ("--top", 1) if head == "tokens" else ()
    code, out, err = call(*skipping, *top)
    first, *others, last = out.split("\n")[:-1]
    assert (code, others, first) == (0, ["", ""], last)
    assert first
    assert "2 of 4 texts have no character of the vocabulary; their output is empty" in err
    code, out, _ = call(*skipping, "--json")
    assert [json.loads(line) for line in out.splitlines()[1:3]] == [
        {"input": text, **EMPTY[head]} for text in ("", "zzz")
    ]
    assert call(*skipping[:-2])[0] == 2


@pytest.mark.parametrize("head", EMPTY)
def test_unknown_words_are_the_unknown_token_and_are_counted(head: str, bundles: dict[str, Path], call: Cli) -> None:
    texts = [f"{'[MASK]' if head == 'tokens' else 'a'} {rest}" for rest in ("zzz b", "b", "zy é zzz", "[UNK] zy")]
    model = txport.load(bundles[head])
    unknown = VOCABULARY.index("[UNK]")
    assert [model.encode(text).count(unknown) for text in texts] == [1, 0, 3, 4]  # brackets are none of its letters
    code, out, err = call("run", bundles[head], *texts, "--json")
    assert (code, len(out.splitlines())) == (0, 4)
    assert err == (
        "txport: 1 text spells special tokens ([UNK]), which are read as plain characters; "
        "--parse-special reads the tokens\n"
        "txport: 8 pieces are not in the vocabulary; the model reads the unknown token there\n"
    )
    assert call("run", bundles[head], *texts, "--json", "--unknown", "token") == (code, out, err)
    assert call("run", bundles[head], texts[1], "--json")[2] == ""
    code, out, err = call("run", bundles[head], *texts, "--unknown", "error")
    assert (code, out) == (2, "")
    assert "has characters outside the vocabulary: 'zzz'; --unknown skip leaves them out" in err


def test_an_array_of_vectors_has_one_for_each_text(bundles: dict[str, Path], tmp_path: Path, call: Cli) -> None:
    file = tmp_path / "x.npy"
    code, _, err = call("run", bundles["hidden"], "a", "zzz", "--unknown", "skip", "--output", file)
    assert (code, file.exists()) == (2, False)
    assert "text 2 has no character of the vocabulary, so it has no vector; leave it out" in err
    model = txport.load(bundles["hidden"])
    with pytest.raises(UnknownTextError, match="text 2 has no character"):
        model.embed(["a", "zzz"], unknown="skip")
    assert [each.shape for each in model.embed(["a", "zzz"], unknown="skip", pooling="none")] == [(3, 16), (0, 16)]
    assert list(model.infer(["zzz"], unknown="skip")) == [{}]


@pytest.mark.parametrize(
    ("head", "options", "told"),
    [
        ("labels", "--beams 4", "--beams needs a generating model; this model is encoder-only with the outputs logits"),
        ("labels", "--stream", "--stream needs a generating model"),
        (
            "labels",
            "--pooling first",
            "--pooling needs a model that can embed; this model is encoder-only with the outputs logits",
        ),
        (
            "hidden",
            "--top 2",
            "--top needs a model that can classify or fill or answer; this model is encoder-only with the outputs",
        ),
        ("labels", "--output x.npy", "--output x.npy needs a model that can embed; this model is encoder-only"),
        ("hidden", "--output x.npy --pooling none", "--pooling none returns one per token"),
        ("hidden", "--output x.npy --json", "--json writes text and --output x.npy writes an array"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    head: str,
    options: str,
    told: str,
    bundles: dict[str, Path],
    tmp_path: Path,
    call: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("run", bundles[head], "a", *options.split())
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bench_measures_texts(bundles: dict[str, Path]) -> None:
    from txport.bench import measure as bench

    plan = bench.Plan(batch=(2,), source=(5,), rounds=3, threads=1, inputs=4, starts=1)
    labels = bench.candidates([("labels", load_bundle(bundles["labels"]))], ["ort"])
    found = bench.run(labels, plan)
    assert {"encode", "texts", "tokens"} <= set(found["sizes"][0]["figures"]["ort"])
    assert found["candidates"]["ort"]["quality"]["error"] == 0
    with pytest.raises(UnsupportedError, match="beams needs a generating model"):
        bench.run(labels, dataclasses.replace(plan, beams=(2,)))


def test_configs_that_make_no_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs labels"):
        tiny("labels", labels=())
    with pytest.raises(ConfigError, match="labels are for the heads labels, token_labels, replaced"):
        tiny("hidden", labels=("a",))
    with pytest.raises(ConfigError, match="heads must divide d_model"):
        tiny("hidden", heads=3)
    with pytest.raises(ConfigError, match="encoder_layers must be a multiple of distinct_layers, got 3 of 2"):
        tiny("hidden", distinct_layers=3)
    with pytest.raises(ConfigError, match="farthest must be above half of the 8 buckets, got 4"):
        tiny("hidden", buckets=8, farthest=4)
    with pytest.raises(ConfigError, match="farthest needs distance buckets, got 64 for 0 buckets"):
        tiny("hidden", farthest=64)
    with pytest.raises(ConfigError, match="repeated 'cycles' needs distinct_layers"):
        tiny("hidden", repeated="cycles")
    with pytest.raises(ConfigError, match="the head 'replaced' has one label, got 3"):
        tiny("replaced")
    with pytest.raises(ConfigError, match=r"windows must be none, or 2 numbers from 0 to .*, got \[3\]"):
        tiny("hidden", windows=(3,))
    with pytest.raises(ConfigError, match="windows can't be combined with buckets, got 8"):
        tiny("hidden", windows=(3, 0), buckets=8, farthest=9)
    with pytest.raises(ConfigError, match="first_norm false needs norm_first"):
        tiny("hidden", first_norm=False)
    with pytest.raises(ConfigError, match="rotary positions need an even head size, got 5"):
        tiny("hidden", d_model=10, positions="rotary")
    with pytest.raises(ConfigError, match="mask_id must lie in the source vocabulary"):
        tiny("tokens", mask_id=900)


def test_the_page_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "architectures" / "bert.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(example, {})  # noqa: S102
    assert len(ast.literal_eval(capsys.readouterr().out)) == 3
