"""Folders that transformers wrote, through the graphs of both targets: what they say is what transformers says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import txport
from tests.covering import in_turn
from tests.recorded import FAMILIES, is_recorded, names, whole
from tests.seeded import bundle_of
from tests.tiny import without_metadata
from txport import runtimes
from txport.bundles.reading import read_manifest
from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.checkpoints.family import REFUSED, all_families
from txport.checkpoints.folder import digest, find_folder
from txport.cli.commands import cli
from txport.errors import BundleError, CheckpointError, ConfigError
from txport.models.generation import published_names
from txport.models.names import CONFIG, GENERATION, INDEX, WEIGHTS
from txport.runtimes.inputs import batch
from txport.search.generate import first_tokens
from txport.search.options import SearchOptions, chosen_options
from txport.text.numbers import NumberTokenizer

FOLDERS = [name for name in names() if is_recorded(name)]
OF_NEWEST = [name for name in names() if not is_recorded(name)]  # weights as of the folder of version 4.57
TYPES = {json.loads((FAMILIES / name / CONFIG).read_text())["model_type"]: name for name in reversed(FOLDERS)}
EACH_TYPE = sorted(TYPES.values())  # a folder of each type
# A folder changes the model, and a target's graphs of any model have tests of their own.
GRAPHS = in_turn(FOLDERS, ["portable", "cpu"])
# as tests/hugging_face/test_families.py recorded it
PROMPTS = [[1, 9, 5, 3, 7], [1], [1, 8, 11], [1, 6, 13, 22, 4, 17, 5, 9, 5]]
SOURCES = [[9, 5, 3, 7, 2], [6, 2], [8, 11, 19, 21, 4, 5, 16, 2]]
TEXTS = [[3, 9, 5, 3, 7, 4], [3, 4], [3, 8, 11, 19, 21, 4, 5, 16, 22, 4]]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beams": 1, "max_new_tokens": 8},
    "beams": {"beams": 4, "nbest": 2, "max_new_tokens": 8},
    "own": {},  # what generation_config.json says
}


OF_FIVE = {"tie_word_embeddings": True, "transformers_version": "5.24.0"}
OF_SEP = (
    "bert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "gte",
    "modernbert",
    "nomic_bert",
)  # types whose texts end with it
TIES = {"gemma": 1}  # sources with two hypotheses that score alike, of which rounding decides


def said(name: str) -> dict[str, Any]:
    with np.load(FAMILIES / name / "expected.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize(("name", "target"), GRAPHS)
def test_the_graphs_say_what_transformers_says(name: str, target: str, tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(FAMILIES / name)), tmp_path / "bundle", target)
    expected = said(name)
    if "given" not in expected:
        _check_outputs(txport.load(bundle.path), expected)
        return
    facts = bundle.manifest.facts
    inputs = list(expected["features"]) if "features" in expected else PROMPTS if facts.task == "causal" else SOURCES
    _check_logits(bundle, inputs, expected)
    model = txport.load(bundle.path)
    for kind, how in SEARCHES.items():
        if kind not in expected:
            continue
        found = model.search(inputs, **how)
        rows = [[list(each.tokens) for each in row] for row in found]
        wanted = [[cut(row, facts.writes.ends) for row in np.atleast_2d(rows)] for rows in expected[kind]]
        if kind != "beams":
            assert rows == wanted
            continue
        scores = np.array([[each.score for each in row] for row in found])
        np.testing.assert_allclose(scores, expected["scores"], rtol=1e-4, atol=1e-4)
        differing = sum(row != other for row, other in zip(rows, wanted, strict=True))
        assert differing <= TIES.get(name, 0), (rows, wanted)


@pytest.mark.parametrize("name", OF_NEWEST)
def test_a_folder_of_either_version_is_the_same_model(name: str, tmp_path: Path) -> None:
    """The weights are the same, and tests/hugging_face holds both to the same outputs."""
    found, expected = (load_checkpoint(str(whole(each, tmp_path / each))) for each in (name, Path(name).name))
    assert json.loads((tmp_path / name / CONFIG).read_text())["transformers_version"].startswith("5.")
    assert found.config == expected.config
    assert found.generation == expected.generation


def _check_outputs(model: Any, expected: dict[str, Any]) -> None:
    if "vectors" in expected:
        model.tokenizer = NumberTokenizer(model.facts, exact=True)
        found = model.embed([" ".join(map(str, text)) for text in TEXTS])
        np.testing.assert_allclose(found, expected["vectors"], rtol=0, atol=1e-5)
        return
    for number, text in enumerate(TEXTS):
        found = model.runtime.infer(np.array([text]), np.array([len(text)]))
        for name in found:
            if f"{name}.{number}" in expected:
                np.testing.assert_allclose(np.squeeze(found[name]), expected[f"{name}.{number}"], rtol=0, atol=1e-4)


def _check_logits(bundle: Any, inputs: list[Any], expected: dict[str, Any]) -> None:
    runtime = runtimes.load("ort", bundle)
    facts = bundle.manifest.facts
    ids, lengths = batch(inputs, facts)
    given = np.column_stack([first_tokens(inputs, facts), expected["given"]])
    state = runtime.start(ids, lengths, max_length=given.shape[1] + int(max(lengths)))
    for place in range(expected["logits"].shape[1]):
        scores, state = runtime.step(np.ascontiguousarray(given[:, place]), state)
        np.testing.assert_allclose(scores.values, expected["logits"][:, place], rtol=0, atol=1e-4)


def cut(row: Any, ends: tuple[int, ...]) -> list[int]:
    """Up to the end token, without what fills up a row."""
    tokens = [token for token in row.tolist() if token >= 0]
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: stop + 1]


def test_run_searches_as_generate_does_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(FAMILIES / "marian-defaults")), tmp_path / "bundle", "portable")
    assert bundle.manifest.generation["beams"] == 3
    source = " ".join(map(str, SOURCES[0]))
    own = said("marian-defaults")["own"][0]
    run = ["run", str(bundle.path), "--ids", source]
    done = CliRunner().invoke(cli, run)
    assert done.output.split() == [str(token) for token in own if token >= 0]
    greedy = CliRunner().invoke(cli, [*run, "--beams", "1", "--no-repeat-ngram-size", "0"])
    assert greedy.output != done.output


def test_run_embeds_as_a_folder_of_sentence_transformers_does_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(FAMILIES / "sentences-mean")), tmp_path / "bundle", "portable")
    assert bundle.manifest.generation == {"pooling": "mean", "normalize": True}
    text = " ".join(map(str, TEXTS[0]))
    run = ["run", str(bundle.path), "--ids", text]
    own, whole, first = (
        np.array(json.loads(CliRunner().invoke(cli, [*run, *more]).output))
        for more in ([], ["--no-normalize"], ["--pooling", "first", "--no-normalize"])
    )
    np.testing.assert_allclose(own, said("sentences-mean")["vectors"][0], atol=1e-5)
    np.testing.assert_allclose(own, whole / np.linalg.norm(whole), atol=1e-6)
    assert not np.allclose(first, whole)
    too_long = CliRunner().invoke(cli, ["run", str(bundle.path), "--ids", " ".join(["7"] * 13)])
    assert "has 13 tokens, the model takes at most 12" in str(too_long.exception or too_long.output)


def test_the_digest_counts_how_sentences_are_pooled(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    before = digest(str(folder))
    rewrite(folder / "1_Pooling" / CONFIG, pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert digest(str(folder)) != before


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def module_of(kind: str, path: str = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


FIRST = module_of("Transformer")
SECOND = module_of("Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([FIRST, SECOND, module_of("CNN", "2_CNN")], "'CNN' is not supported; supported: Transformer, Pooling, Dense"),
        ([FIRST, SECOND, module_of("Dense", "dense")], "the Dense must lie in N_Dense, got the path 'dense'"),
        ([FIRST, SECOND, {"type": "custom.Whitening", "path": ""}], "'custom.Whitening' is custom code, which is not"),
        ([FIRST], "Pooling is missing"),
        ([SECOND, FIRST], "'Pooling' is not supported"),
        ([module_of("Transformer", "0_Transformer"), SECOND], "the Transformer must lie beside it, got the path"),
        ([FIRST, module_of("Pooling", "../1_Pooling")], r"must name folders beside it, got '\.\./1_Pooling'"),
        ([FIRST, module_of("Pooling", "pool")], "the Pooling must lie in N_Pooling, got the path 'pool'"),
        ([FIRST, {"type": 3}], "must list modules with a type and a path each"),
        ({}, "must list modules with a type and a path each"),
    ],
)
def test_modules_that_nothing_expresses_are_refused(modules: Any, message: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode_max_tokens": True},
            "pooling_mode 'mean_tokens and max_tokens' is not",
        ),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling_mode 'none' is not supported"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "mean_sqrt_len_tokens"},
            "pooling_mode 'mean_sqrt_len_tokens' is not",
        ),
        ("1_Pooling/config.json", {"word_embedding_dimension": 33}, "word_embedding_dimension 33 is not the model's"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is not supported"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be a whole number of tokens, got 0"),
        (
            "1_Pooling/config.json",
            {"scale": 2.0},
            "the key 'scale', here 2.0, is not supported: vectors may depend on it",
        ),
        ("sentence_bert_config.json", {"query_length": 9}, "the key 'query_length', here 9, is not supported"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            "transformer_task 'fill-mask' is not supported",
        ),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "the key 'truncate_dim', here 8, is not supported"),
        ("2_Normalize/config.json", {"module_input_name": "x"}, "module_input_name 'x' is not supported; it must be"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query' is none of the prompts"),
        ("config_sentence_transformers.json", {"prompts": ["query"]}, "prompts must be texts by their names, got"),
    ],
)
def test_a_pooling_that_nothing_expresses_is_refused(
    file: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    (folder / file).parent.mkdir(exist_ok=True)
    if not (folder / file).is_file():
        (folder / file).write_text("{}")
    rewrite(folder / file, **values)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(str(folder))


def test_a_folder_of_the_newest_sentence_transformers_is_read_as_an_older_one(tmp_path: Path) -> None:
    """Version 6 names modules, the pooling and the longest text otherwise."""
    old, new = (Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / name)) for name in ("old", "new"))
    kinds = {"": "base.modules.transformer.Transformer", "1_Pooling": "sentence_transformer.modules.pooling.Pooling"}
    kinds |= {"2_Normalize": "base.modules.normalize.Normalize"}
    modules = [
        {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()
    ]
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True},
        "2_Normalize/config.json": {"module_input_name": "sentence_embedding"},
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
        "tokenizer_config.json": {"model_max_length": 12},
    }
    for name, values in files.items():
        (new / name).parent.mkdir(exist_ok=True)
        (new / name).write_text(json.dumps(values))
    found, expected = (load_checkpoint(str(each)) for each in (new, old))
    assert (found.config, found.generation) == (expected.config, expected.generation)


@pytest.mark.parametrize(
    ("mode", "pooling"), [("lasttoken", "last"), ("max_tokens", "max"), ("weightedmean_tokens", "weighted-mean")]
)
def test_a_pooling_and_the_prompts_of_sentence_transformers_are_a_bundle_s_own(
    mode: str, pooling: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    more = {"pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True, "include_prompt": False}
    rewrite(folder / "1_Pooling" / CONFIG, **more)
    prompts = {"query": "query: ", "document": None}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "query"}))
    bundle = bundle_of(load_checkpoint(str(folder)), tmp_path / "bundle", "portable")
    own = {"prompts": {"query": "query: ", "document": ""}, "prompt": "query", "include_prompt": False}
    assert bundle.manifest.generation == {"pooling": pooling, "normalize": True, **own}
    assert txport.load(bundle.path).defaults == bundle.manifest.generation
    page = (bundle.path / "README.md").read_text()
    assert all(each in page for each in ("`query`: `'query: '`", "; by default `query`; its tokens are not pooled"))
    model = txport.load(bundle.path)
    text = " ".join(map(str, TEXTS[0]))
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace('"onnx', f'"{bundle.path}/onnx'), space := {})  # type: ignore # noqa: S102
    vector = space["embed"](model.encode(text))  # type: ignore[operator]
    np.testing.assert_allclose(vector, model.embed(text, prompt="")[0], atol=1e-6)


def test_another_output_of_a_sentence_encoder_than_its_tokens_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    pooled = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    for name, value in {"modality_config": pooled, "module_output_name": "sentence_embedding"}.items():
        (folder / "sentence_bert_config.json").write_text(json.dumps({name: value}))
        with pytest.raises(ConfigError, match=rf"sentence_bert_config\.json: {name} .* is not supported; it must be"):
            load_checkpoint(str(folder))


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_an_attention_factor_counts_only_where_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    scaling = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8}
    found = []
    for name, more in {"plain": {}, "scaled": {"attention_factor": 2.0}}.items():
        folder = Path(shutil.copytree(FAMILIES / "llama", tmp_path / name))
        change(folder, rope_scaling={**scaling, **more})
        found.append(load_checkpoint(str(folder)).config)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["deberta-v2", "t5"])
def test_any_encoder_of_hidden_states_may_have_modules(name: str, tmp_path: Path) -> None:
    """Also with the weights of a decoder, which is left out."""
    folder = Path(shutil.copytree(FAMILIES / name, tmp_path / "x"))
    (folder / "modules.json").write_text(json.dumps([FIRST, SECOND]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / CONFIG).write_text(json.dumps({"pooling_mode": "max"}))
    checkpoint = load_checkpoint(str(folder))
    model = txport.load(bundle_of(checkpoint, tmp_path / "bundle", "cpu").path)
    model.tokenizer = NumberTokenizer(model.facts, exact=True)
    ids = torch.tensor([TEXTS[2]])
    with torch.inference_mode():
        (states,) = checkpoint.model.infer(ids, torch.ones_like(ids).bool())
    np.testing.assert_allclose(model.embed(" ".join(map(str, TEXTS[2])))[0], states[0].amax(0), rtol=0, atol=1e-5)


def test_encoders_of_sentences_are_encoders(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "gpt2", tmp_path / "x"))
    (folder / "modules.json").write_text(json.dumps([FIRST, SECOND]))
    with pytest.raises(ConfigError, match=r"model_type 'gpt2' is not supported with modules\.json"):
        load_checkpoint(str(folder))


def test_a_classifier_reads_the_last_token_that_is_no_padding_as_transformers_does(tmp_path: Path) -> None:
    """A text that ends with the padding token has the logits of the text before it."""
    bundle = bundle_of(load_checkpoint(str(FAMILIES / "qwen2-labels")), tmp_path / "bundle", "cpu")
    runtime = txport.load(bundle.path).runtime
    ids, lengths = batch([TEXTS[0], [*TEXTS[0], 0, 0], TEXTS[2]], bundle.manifest.facts)
    logits = runtime.infer(ids, lengths)["logits"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits[0], said("qwen2-labels")["logits.0"], rtol=0, atol=1e-4)


def test_a_classifier_without_a_padding_token_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "qwen2-labels", tmp_path / "x"))
    rewrite(folder / CONFIG, pad_token_id=None)
    with pytest.raises(ConfigError, match="a class with labels needs the pad_token_id"):
        load_checkpoint(str(folder))


def test_attention_to_later_tokens_is_refused_in_a_class_that_writes_text(tmp_path: Path) -> None:
    folder = whole("transformers-5/gemma3-both-ways", tmp_path / "x")
    assert load_checkpoint(str(folder)).config.windows == (3, 3, 0)  # type: ignore[attr-defined]
    rewrite(folder / CONFIG, architectures=["Gemma3ForCausalLM"])
    with pytest.raises(ConfigError, match="use_bidirectional_attention is not supported in a class that writes text"):
        load_checkpoint(str(folder))


def test_an_encoder_of_sentences_has_no_head_whatever_its_config_says(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "sentences-mean", tmp_path / "x"))
    rewrite(folder / CONFIG, architectures=["BertForMaskedLM"])
    assert load_checkpoint(str(folder)).facts.ability == "embed"


@pytest.mark.parametrize("values", [{"pooling": "none", "normalize": True}, {"pooling": "mean"}, {"beams": 3}])
def test_a_bundle_that_pools_otherwise_is_refused(values: dict[str, Any], tmp_path: Path) -> None:
    bundle = bundle_of(load_checkpoint(str(FAMILIES / "sentences-mean")), tmp_path / "bundle", "portable")
    without_metadata(bundle.path)
    rewrite(bundle.path / "txport.json", generation=values)
    with pytest.raises(BundleError, match=r"the embed options of .* are not valid"):
        txport.load(bundle.path)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"num_beams": -1}, "beams must lie in"),
        ({"top_k": "x", "do_sample": True}, "top_k must"),
        ({"bad_words_ids": 3}, ""),
    ],
)
def test_a_generation_config_that_no_search_can_follow_is_refused(
    copied: Path, tmp_path: Path, generation: dict[str, Any], message: str
) -> None:
    (copied / GENERATION).write_text(json.dumps(generation))
    with pytest.raises(ConfigError, match=rf"the generation options of .* are not valid: .*{message}"):
        bundle_of(load_checkpoint(str(copied)), tmp_path / "bundle", "portable")


def test_a_generation_option_that_is_unknown_is_refused_by_name(copied: Path) -> None:
    (copied / GENERATION).write_text(json.dumps({"num_beams": 2, "mirostat": 2}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: the key 'mirostat', here 2, is not supported"):
        load_checkpoint(str(copied))


def test_a_generation_option_that_is_not_followed_is_told(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"guidance_scale": 3, "typical_p": 1.0, "top_h": None, "use_cache": False, "penalty_alpha": 0.0}
    (copied / GENERATION).write_text(json.dumps(options))
    found = load_checkpoint(str(copied))
    assert (found.generation, found.not_followed) == ({}, {"guidance_scale": 3})
    assert [each.message for each in caplog.records] == [
        f"{copied}: guidance_scale 3 is not followed; outputs may differ for it"
    ]


def test_a_penalty_of_length_that_is_stored_is_for_scores(copied: Path, tmp_path: Path) -> None:
    """A greedy output without scores is the same with it, and nobody gave it."""
    (copied / GENERATION).write_text(json.dumps({"length_penalty": 0.7}))
    bundle = bundle_of(load_checkpoint(str(copied)), tmp_path / "bundle", "portable")
    done = CliRunner().invoke(cli, ["run", str(bundle.path), "--ids", "5 6 7 8"], catch_exceptions=False)
    (found,) = txport.load(bundle.path).search([[5, 6, 7, 8]])
    assert done.stdout.split() == [str(token) for token in found[0].tokens]


def test_an_option_that_is_not_followed_is_recorded_and_told_by_run(copied: Path, tmp_path: Path) -> None:
    (copied / GENERATION).write_text(json.dumps({"guidance_scale": 3, "num_beams": 2, "max_length": 9}))
    bundle = bundle_of(load_checkpoint(str(copied)), tmp_path / "bundle", "portable")
    assert read_manifest(bundle.path).not_followed == txport.load(bundle.path).not_followed == {"guidance_scale": 3}
    assert "does not follow `guidance_scale` `3`" in (bundle.path / "README.md").read_text(encoding="utf-8")
    done = CliRunner().invoke(cli, ["run", str(bundle.path), "--ids", "5 6 7 8"])
    expected = "txport: outputs may differ from transformers', because txport does not follow guidance_scale 3"
    assert done.stderr.splitlines() == [expected]
    assert 1 <= len(done.stdout.split()) <= 5  # the prompt counts
    too_long = CliRunner().invoke(cli, ["run", str(bundle.path), "--ids", " ".join(["5"] * 9)])
    assert "in --max-length 9; shorten it, or give --max-new-tokens" in str(too_long.exception)


def test_beams_that_are_sampled_are_searched_and_stop_strings_are_kept(copied: Path) -> None:
    given = {"do_sample": True, "num_beams": 3, "num_return_sequences": 2, "stop_strings": ["###"], "temperature": 0.5}
    (copied / GENERATION).write_text(json.dumps(given))
    found = load_checkpoint(str(copied))
    assert found.not_followed == {"do_sample": True}
    assert chosen_options(found.generation, {}) == SearchOptions(beams=3, nbest=2, stop=["###"])
    assert published_names(found.generation)["stop_strings"] == ["###"]


def test_stored_options_apply_where_they_have_an_effect(copied: Path) -> None:
    (copied / GENERATION).write_text(json.dumps({"early_stopping": True, "temperature": 0.5, "max_length": 1000}))
    stored = load_checkpoint(str(copied)).generation
    assert stored == {"early_stopping": True, "temperature": 0.5}
    assert chosen_options(stored, {}) == SearchOptions()
    assert chosen_options(stored, {"beams": 2}) == SearchOptions(beams=2, early_stopping=True)
    assert chosen_options(stored, {"do_sample": True}) == SearchOptions(do_sample=True, temperature=0.5)


def test_old_files_of_bart_force_their_first_token(tmp_path: Path) -> None:
    folder = whole("bart", tmp_path)
    (folder / GENERATION).unlink()
    change(folder, force_bos_token_to_be_generated=True)
    assert load_checkpoint(str(folder)).generation["forced_bos_token_id"] == 1


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("helium", {}, r"line 1: a 'helium' is not computed as a llama: it is read without a base"),
        ("phimoe", {}, r"line 1: a 'phimoe' is not computed as a llama: only the experts of Mixtral, Qwen, OLMoE"),
        ("other", {"logits_scaling": 8.0}, r"the key 'logits_scaling', here 8.0, is not supported: no llama of"),
    ],
)
def test_a_base_that_computes_otherwise_is_refused(
    kind: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = whole("llama", tmp_path)
    change(folder, model_type=kind, **values)
    (folder / "txport.toml").write_text('base = "hugging-face:llama"\n')
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(str(folder))


def test_experts_are_read_from_one_tensor_too(tmp_path: Path) -> None:
    """As modules of transformers 5 hold them: gates and up projections (E, 2 I, D), and down projections (E, D, I)."""
    folder = whole("transformers-5/qwen3_moe", tmp_path / "each")
    expected = load_checkpoint(str(folder)).model.state_dict()
    tensors = load_file(folder / WEIGHTS)
    place = "model.layers.1.mlp.experts"
    gate, up, down = (
        torch.stack([tensors.pop(f"{place}.{at}.{role}_proj.weight") for at in range(8)])
        for role in ("gate", "up", "down")
    )
    tensors |= {f"{place}.gate_up_proj": torch.cat([gate, up], 1), f"{place}.down_proj": down}
    save_file(tensors, folder / WEIGHTS)
    found = load_checkpoint(str(folder)).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_every_type_has_a_folder() -> None:
    assert {*TYPES, "camembert"} == set(all_families())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FAMILIES / "gpt2", tmp_path / "gpt2"))


def config_with(folder: Path, **values: Any) -> object:
    """The config of a folder whose `config.json` has these values and two tokens alone."""
    (folder / CONFIG).write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0, **values}))
    return config_of(find_folder(str(folder)))


def change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | values))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gptj", {"rotary": True}),  # GPT-J-6B
        ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}),  # Phi-4-mini
        ("starcoder2", {"mlp_type": "default", "norm_type": "layer_norm"}),
        (
            "cohere2",  # Command R7B
            {
                "layer_switch": 4,
                "order_of_interleaved_layers": "local_attn_first",
                "position_embedding_type": "rope_gptj",
                "rotary_pct": 1.0,
                "use_embedding_sharing": True,
                "use_gated_activation": True,
                "use_parallel_block": True,
                "use_parallel_embedding": True,
            },
        ),
        ("roberta", {"language": "english", "name": "Roberta"}),  # deepset/roberta-base-squad2
        ("gpt_neox", {"custom_pipelines": {"text-generation": {"impl": "instruct_pipeline.Pipeline"}}}),  # Dolly
        ("gemma2", {"sliding_window_size": 4096}),
        ("bart", {"replacing_rate": 0, "save_step": 6, "student_encoder_layers": None}),  # distilbart-cnn-12-6
    ],
)
def test_what_published_files_say_besides_changes_nothing(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    """The first releases of these have keys that no version of transformers reads."""
    assert config_with(tmp_path, model_type=name, **values) == config_with(tmp_path, model_type=name)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gptj", {"rotary": False}),
        ("phi3", {"full_attn_mod": 2}),
        ("starcoder2", {"mlp_type": "gated"}),
        ("cohere2", {"use_embedding_sharing": False}),
        ("cohere2", {"position_embedding_type": "none"}),
        ("exaone4", {"layer_types": None, "sliding_window": 4, "sliding_window_pattern": "LLX"}),
    ],
)
def test_published_keys_with_other_values_are_refused(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{list(values)[-1]} .* is not supported; it must be "):
        config_with(tmp_path, model_type=name, **values)


def test_gelu_of_the_first_gemmas_is_its_approximation(tmp_path: Path) -> None:
    found = config_with(tmp_path, model_type="gemma", hidden_act="gelu", hidden_activation=None)
    assert found == config_with(tmp_path, model_type="gemma", hidden_act="gelu_pytorch_tanh")
    assert found != config_with(tmp_path, model_type="gemma", hidden_act="relu")
    exact, other = (
        config_with(tmp_path, model_type="gemma2", hidden_activation=each) for each in ("gelu", "gelu_pytorch_tanh")
    )
    assert exact != other, "Gemma 2 means what it says"


def test_a_pattern_of_windows_may_be_letters(tmp_path: Path) -> None:
    """The last layer has no window, as in transformers; `layer_types` decides where there is one."""
    values = {"model_type": "exaone4", "num_hidden_layers": 5, "sliding_window": 4, "sliding_window_pattern": "LLG"}
    kinds = [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full")]
    found = config_with(tmp_path, **values)
    assert found == config_with(tmp_path, **values | {"layer_types": kinds})
    assert found != config_with(tmp_path, **values | {"layer_types": ["full_attention"] * 5})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "xyz"}, r"unknown model_type 'xyz'; there are albert, .*, xlm-roberta"),
        ({"model_type": 3}, r"unknown model_type 3; .*; if it computes the same as one of these, docs/own-checkpoint"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "the class 'GPT2ForSequenceClassification' of a"),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "the class 'GPT2DoubleHeadsModel' of a gpt2 is not supported"),
        ({"num_attention_heads": 8}, "num_attention_heads 8 and n_head 4 must be the same"),
        ({"eos_token_id": [2, 3]}, r"eos_token_id \[2, 3\] is not supported; it must be one token"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not supported; supported: gelu, "),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx True is not supported; it must be",
        ),
        (
            {"alibi": True},
            "the key 'alibi', here True, is not supported: no gpt2 of transformers that is known has this",
        ),
        ({"scale_attn_weights": False}, "scale_attn_weights False is not supported; it must be True"),
        ({"pruned_heads": {"0": [1]}}, r"pruned_heads {'0': \[1\]} is not supported; it must be {}"),
        ({"n_head": 3}, "heads must divide d_model, got 3 for 32"),
        ({"n_layer": "2"}, "decoder_layers must be int, got '2'"),
    ],
)
def test_a_config_that_nothing_expresses_is_refused_by_name(copied: Path, values: dict[str, Any], message: str) -> None:
    change(copied, **values)
    (copied / GENERATION).unlink()
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        load_checkpoint(str(copied))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("llama", {"rope_scaling": {"rope_type": "fancy", "factor": 2.0}}, "rope_scaling 'fancy' is not supported"),
        ("llama", {"rope_scaling": [1]}, "it is not the config of a llama"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "rope_type": "default"}},
            "rope_scaling has the type 'linear' and",
        ),
        ("llama", {"rope_scaling": {"type": "linear"}}, "it is not the config of a llama: KeyError"),
        ("llama", {"rope_parameters": {"full": {"rope_theta": 1e4}}}, "rope_parameters per layer type are not"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported; it must be 1.0"),
        ("phi3", {"partial_rotary_factor": 0.0}, "partial_rotary_factor 0.0 of heads of 16 is not supported: nothi"),
        ("llama", {"rope_parameters": {"alpha": 1000.0}}, "rope_parameters' alpha 1000.0 is not supported"),
        (
            "gemma2",
            {"layer_types": ["full_attention"]},
            "layer_types must be 2 of sliding_attention and full_attention",
        ),
        (
            "gemma2",
            {"layer_types": ["full_attention", "x"]},
            "layer_types must be 2 of sliding_attention and full_atten",
        ),
        (
            "mistral-window",
            {"layer_types": ["full_attention"] * 2},
            ".*: all layers of a mistral are sliding_attention",
        ),
        ("llama", {"layer_types": ["sliding_attention"] * 2}, ".*: all layers of a llama are full_attention"),
        ("mistral-window", {"sliding_window": 0}, "sliding_window 0 is not supported: layers with sliding_attention"),
        ("gemma2", {"sliding_window": None}, "sliding_window None is not supported: layers with sliding_attention"),
        ("qwen2-window", {"use_sliding_window": False}, "sliding_window 5 is not supported: layers with sliding_att"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers must be 3 of 0 and 1, got \[1, 0\]"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, r"no_rope_layers must be 3 of 0 and 1, got \[1, 0, 2\]"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping 0.0 is not supported; it must be null"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ("gemma3", {"attn_logit_softcapping": 9.0}, "attn_logit_softcapping 9.0 is not supported; it must be None"),
        ("gemma3-images", {"text_config": [3]}, "it is not the config of a gemma3"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
            "rope_parameters of sliding_attention with the rope_type 'yarn' are not supported",
        ),
        ("gemma", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ("flan-t5", {"dense_act_fn": "silu"}, "dense_act_fn 'silu' and feed_forward_proj 'gated-gelu' must mean the"),
        ("roberta-tokens", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported; it must be 'gelu'"),
        ("bert", {"architectures": ["BertLMHeadModel"]}, "the class 'BertLMHeadModel' of a bert is not supported"),
        ("bert-tokens", {"mask_token_id": None}, r"mask_token_id is missing, and \[MASK\] or <mask> in tokenizer.json"),
        (
            "llama-yarn",
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0}},
            "rope_scaling with mscale is not",
        ),
        ("bart", {"decoder_ffn_dim": 7}, "encoder_ffn_dim 40 and decoder_ffn_dim 7 differ"),
        ("m2m_100", {"decoder_start_token_id": 1}, "decoder_start_token_id 1 can't be pad_token_id, which has no"),
        ("t5", {"decoder_start_token_id": 5}, "decoder_start_token_id 5 is not supported; it must be 0"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not"),
        ("bert-labels", {"id2label": {"x": "no"}}, "it is not the config of a bert"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id 0 is not supported; it must be 1"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets 16 is not supp"),
        ("mpnet-tokens", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported; it must be 'gelu'"),
        ("electra-tokens", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported; it must be 'gelu'"),
        ("transformers-5/gpt_oss", {"swiglu_alpha": 1.0}, "swiglu_alpha 1.0 is not supported; it must be 1.702"),
        ("transformers-5/gpt_oss", {"swiglu_limit": 0.0}, "swiglu_limit 0.0 is not supported; it must be above 0"),
        ("deberta", {"talking_head": True}, "talking_head True is not supported; it must be False"),
        ("deberta", {"pos_att_type": ["p2p"]}, "pos_att_type .* is not supported; it must be of c2p, p2c"),
        ("deberta-v2", {"norm_rel_ebd": "batch"}, "norm_rel_ebd 'batch' is not supported; it must be of none, layer"),
        ("deberta-v2-labels", {"conv_kernel_size": 4}, "kernel must be an odd number of tokens, got 4"),
        ("deberta-v2-labels", {"pooler_hidden_size": 8}, "pooler_hidden_size 8 is not supported; it must be 32"),
        ("deberta-v2", {"attention_head_size": 4}, "attention_head_size 4 is not supported; it must be 8"),
        ("bert-spans", {"id2label": {"0": "a", "1": "b", "2": "c"}}, "id2label of a class for questions must have 2"),
        ("albert-inner", {"num_hidden_groups": 2}, "num_hidden_groups 2 and inner_group_num 2 are not supported"),
        ("albert-groups", {"num_hidden_groups": 3}, "num_hidden_layers 4 and num_hidden_groups 3 are not supp"),
    ],
)
def test_a_variant_that_nothing_expresses_is_refused(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    change(folder, **values)
    (folder / GENERATION).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        config_of(folder)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_special_token_beyond_the_vocabulary_is_told_by_its_name_in_the_folder(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    (folder / GENERATION).unlink(missing_ok=True)
    config = json.loads((folder / CONFIG).read_text())
    inner = config.get("text_config", config)
    size = inner["vocab_size"]
    key = "sep_token_id" if config["model_type"] in OF_SEP else "eos_token_id"
    config[key] = inner[key] = size + 5
    (folder / CONFIG).write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=rf"{key} must lie in the vocabulary of {size} \(vocab_size\), got {size + 5}$"
    ):
        config_of(folder)


def test_a_default_beyond_the_vocabulary_is_told_as_such(copied: Path) -> None:
    config = json.loads((copied / CONFIG).read_text())
    (copied / CONFIG).write_text(json.dumps({name: each for name, each in config.items() if "eos" not in name}))
    (copied / GENERATION).unlink()
    with pytest.raises(ConfigError, match=r"eos_token_id must lie .* got 50256, which a gpt2 has where none is named"):
        config_of(copied)


@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_nothing_expresses_are_refused_with_the_reason(kind: str, copied: Path) -> None:
    assert kind not in all_families()
    change(copied, model_type=kind)
    with pytest.raises(ConfigError, match=f"the model_type '{kind}' is not supported: {re.escape(REFUSED[kind])}"):
        config_of(copied)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rotary_base": 5e5}),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
            {"rotary_base": 5e5, "rotary_scaling": "linear", "rotary_factor": 2.0},
        ),
        (
            "phi3-longrope",
            {"rope_scaling": {"type": "yarn", "short_factor": [2.0] * 8}},
            {"rotary_scaling": "longrope"},
        ),
        (
            "phi3-longrope",
            {"rope_scaling": {"type": "longrope", "short_factor": [2.0] * 8, "factor": 9.0}},
            {"rotary_factor": 2.0},
        ),
        ("llama-yarn", {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": True, "beta_fast": None}}, {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9}, {"max_length": 40}),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "layer_types": None},
            {"max_length": 40, "windows": [0, 9]},
        ),
        ("qwen2-window", {"sliding_window": 39}, {"windows": [0, 39]}),
        ("phi3-window", {"sliding_window": 39}, {"windows": [39, 39]}),
        ("mistral-window", {"use_sliding_window": False}, {"windows": [4, 4]}),  # whose classes never ask it
        ("phi3-window", {"use_sliding_window": False}, {"windows": [3, 3]}),
        ("gemma2", {"use_sliding_window": False, "sliding_window": 9}, {"windows": [9, 0]}),
        ("llama", {"sliding_window": 9, "use_sliding_window": True}, {"max_length": 9}),
        ("llama", {"sliding_window": 9}, {"max_length": 9}),
        ("smollm3-window", {"no_rope_layers": [1, 1]}, {"windows": [4, 0]}),
        ("smollm3-window", {"layer_types": None}, {"windows": [4, 0], "unturned_layers": [0]}),
        ("mistral", {"max_position_embeddings": 10**6}, {"max_length": 10**6}),
        ("gemma", {"hidden_act": "silu"}, {"activation": "silu"}),
        (
            "gemma2",
            {"sliding_window": 9},
            {"max_length": 40, "windows": [9, 0], "attention_cap": 2.0, "logit_cap": 3.0},
        ),
        ("gemma2-plain", {"final_logit_softcapping": None}, {"max_length": 40, "attention_cap": 0.0, "logit_cap": 0.0}),
        (
            "gemma3",
            {
                "rope_scaling": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                },
            },
            {"rotary_base": 5e5, "rotary_factor": 4.0, "rotary_local_base": 2e4, "rotary_local_layers": [0, 1]},
        ),
        ("t5", {}, {"tied": True, "scaled": True}),
        ("flan-t5", {}, {"tied": False, "scaled": False}),
        ("mt5", {"tie_word_embeddings": True, "transformers_version": None}, {"tied": True, "scaled": True}),
        ("mt5", {"tie_word_embeddings": True, "transformers_version": "4.57.6"}, {"tied": True, "scaled": True}),
        ("mt5", {"tie_word_embeddings": True, "transformers_version": "5.0.0"}, {"tied": False, "scaled": False}),
        ("flan-t5", {"scale_decoder_outputs": False, **OF_FIVE}, {"tied": False, "scaled": False}),
        ("flan-t5", {"scale_decoder_outputs": True, **OF_FIVE}, {"tied": False, "scaled": True}),
        ("flan-t5", OF_FIVE, {"tied": False, "scaled": True}),
        ("t5", {"scale_decoder_outputs": False, **OF_FIVE}, {"tied": True, "scaled": False}),
        ("roberta-tokens", {"mask_token_id": None}, {"mask_id": 23}),
        ("roberta", {"mask_token_id": None}, {"mask_id": 1}),
    ],
)
def test_values_mean_what_they_mean_in_transformers(
    name: str, values: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    change(folder, **values)
    config = config_of(folder).to_dict()
    assert {key: config[key] for key in expected} == expected


def test_what_is_missing_is_as_in_the_class_of_transformers(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"model_type": "mistral"}))
    config = config_of(tmp_path).to_dict()
    assert (config["key_heads"], config["max_length"], config["add_bos"]) == (8, 131072, True)
    assert config["windows"] == [4096] * 32


WITHOUT_WINDOWS = [
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen2", {"sliding_window": 9}),
    ("qwen2-window", {"max_window_layers": 2, "layer_types": None}),
    ("qwen2-window", {"sliding_window": 40}),
    ("qwen2-window", {"use_sliding_window": None, "layer_types": None, "max_window_layers": 0}),
    ("phi3-window", {"sliding_window": 262144}),
    ("gemma2-plain", {}),
    ("gemma3", {"sliding_window": 40}),
    ("smollm3", {}),
]


@pytest.mark.parametrize(("name", "values"), WITHOUT_WINDOWS)
def test_a_window_that_no_sequence_is_longer_than_is_none(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    """So that nothing of such a model is computed otherwise for it."""
    folder = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    change(folder, **values)
    config = config_of(folder)
    assert "windows" not in config.to_dict()
    assert config.max_length == 40


def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "bert-tokens", tmp_path / "bert"))
    change(folder, mask_token_id=None, cls_token_id=None)
    added = [{"content": written, "id": id_} for id_, written in ((6, "[MASK]"), (7, "[CLS]"))]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    config = config_of(folder).to_dict()
    assert (config["mask_id"], config["cls_id"], config["sep_id"]) == (6, 7, 4)


@pytest.mark.parametrize(("end", "is_said"), [(2, False), (3, True)])
def test_an_end_of_turn_that_does_not_end_generation_is_said(
    end: int, is_said: bool, copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {f"w{id_}": id_ for id_ in range(24) if id_ != end} | {"<|im_end|>": end}
    tokenizer = Tokenizer(WordLevel(words))
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(copied / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    load_checkpoint(str(copied))
    assert ("<|im_end|> (id 3), the tokenizer's end token, is not among the end tokens of" in caplog.text) == is_said
    assert ("`txport run --eos-token '<|im_end|>'`" in caplog.text) == is_said  # as a shell reads it


def test_a_model_without_a_head_has_no_bias_of_the_output(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "bart", tmp_path / "bart"))
    weights = load_file(folder / WEIGHTS)
    bare = {name.removeprefix("model."): each for name, each in weights.items() if name != "final_logits_bias"}
    save_file(bare, folder / WEIGHTS)
    change(folder, architectures=["BartModel"])
    model = load_checkpoint(str(folder)).model
    assert not model.projection.bias.any()


def test_a_tensor_that_lies_in_two_files_is_refused(copied: Path) -> None:
    places = in_shards(copied)
    first, second = sorted(set(places.values()))
    save_file({**load_file(copied / first), **load_file(copied / second)}, copied / first)
    with pytest.raises(CheckpointError, match="which another file of"):
        load_checkpoint(str(copied))


def test_a_masked_model_whose_projection_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FAMILIES / "bert-tokens", tmp_path / "bert"))
    weights = load_file(folder / WEIGHTS)
    own = weights["bert.embeddings.word_embeddings.weight"] + 1
    save_file({**weights, "cls.predictions.decoder.weight": own}, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match="must be one tensor, but differ"):
        load_checkpoint(str(folder))


def test_special_tokens_are_those_of_generation(copied: Path) -> None:
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": [5], "pad_token_id": 7}))
    config = load_checkpoint(str(copied)).config.to_dict()
    assert (config["eos_id"], config["pad_id"]) == (5, 0)


def in_shards(folder: Path) -> dict[str, str]:
    """The same weights in two files and an index."""
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    places = {name: names[number % 2] for number, name in enumerate(weights)}
    for file in names:
        save_file({name: tensor for name, tensor in weights.items() if places[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return places


def test_weights_may_lie_in_several_files(copied: Path) -> None:
    whole = load_checkpoint(str(copied))
    in_shards(copied)
    parts = load_checkpoint(str(copied))
    other = dict(parts.model.named_parameters())
    assert all((tensor == other[name]).all() for name, tensor in whole.model.named_parameters())
    assert parts.sha256 != whole.sha256


def test_a_shard_that_is_missing_is_named(copied: Path) -> None:
    places = in_shards(copied)
    file = sorted(places.values())[0]
    (copied / file).unlink()
    with pytest.raises(CheckpointError, match=f"lacks '{file}', which model.safetensors.index.json names"):
        load_checkpoint(str(copied))


@pytest.mark.parametrize("places", [[], {"weight_map": {}}, {"weight_map": {"a": "../x"}}, {"weight_map": {"a": 3}}])
def test_an_index_that_names_no_files_beside_it_is_refused(copied: Path, places: Any) -> None:
    in_shards(copied)
    (copied / INDEX).write_text(json.dumps(places))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load_checkpoint(str(copied))


def damaged(folder: Path, **changes: Any) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file({name: tensor for name, tensor in {**weights, **changes}.items() if tensor is not None}, folder / WEIGHTS)


def test_what_does_not_fit_is_named_by_the_names_of_its_file(copied: Path) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    whole = load_file(copied / WEIGHTS)[name]
    damaged(copied, **{name: whole[:, :-1].contiguous()})
    with pytest.raises(CheckpointError, match=r"'transformer.h.0.attn.c_attn.weight' of shape \(95, 32\) must hold 32"):
        load_checkpoint(str(copied))
    damaged(copied, **{name: None, "transformer.h.9.mlp.c_fc.bias": whole[0].contiguous()})
    with pytest.raises(CheckpointError, match=r"missing decoder\.0\.attention.*unexpected transformer\.h\.9\.mlp"):
        load_checkpoint(str(copied))


WRONG: list[Any] = [None, True, -1, 0, 3, 1.5, 10**13, "", "x", [], [1], ["x"], {}, {"type": "x"}, {"a": [1]}]


@pytest.mark.parametrize("name", EACH_TYPE)
def test_a_wrong_value_of_any_key_is_refused_or_read(name: str, tmp_path: Path) -> None:
    """The largest for each key, and a fifth of the others in turn."""
    values = json.loads((FAMILIES / name / CONFIG).read_text())
    scaling = values.get("rope_scaling") or {}
    changes = [{key: wrong} for at, key in enumerate(values) for wrong in (10**13, *WRONG[at % 5 :: 5])]
    changes += [{"rope_scaling": scaling | {key: wrong}} for key in scaling for wrong in WRONG]
    refused = []
    for change in changes:
        (tmp_path / CONFIG).write_text(json.dumps(values | change))
        try:
            config_of(tmp_path)
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > len(changes) / 8
    assert all(each.startswith(f"{tmp_path / CONFIG}: ") and "\n" not in each for each in refused)


@pytest.mark.parametrize("name", ["bart", "m2m_100", "marian", "mbart", "mvp", "pegasus", "plbart"])
@pytest.mark.parametrize(
    ("config", "generated", "start"),
    [  # what `generate` of transformers 4.57 and 5.24 begins a target with, or would for a null of the class's default
        ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 6}, 6),
        ({"decoder_start_token_id": 5}, {"decoder_start_token_id": None, "bos_token_id": 7}, 7),
        ({"decoder_start_token_id": None, "bos_token_id": 9}, {"decoder_start_token_id": None, "bos_token_id": 7}, 7),
        ({"decoder_start_token_id": 5, "bos_token_id": 9}, None, 5),
        ({"decoder_start_token_id": None, "bos_token_id": 9}, None, 9),
    ],
)
def test_targets_begin_with_the_token_that_transformers_begins_them_with(
    name: str, config: dict[str, Any], generated: dict[str, Any] | None, start: int, tmp_path: Path
) -> None:
    folder = shutil.copytree(FAMILIES / name, tmp_path / "folder")
    for file, changes in ((CONFIG, config), (GENERATION, generated)):
        values = json.loads((folder / file).read_text()) | (changes or {})
        (folder / file).write_text(json.dumps(values))
    if generated is None:
        (folder / GENERATION).unlink()
    made = config_of(folder).to_dict()
    assert (made["start_id"] if made["start_id"] is not None else made["bos_id"]) == start


@pytest.mark.parametrize(("name", "side"), [("marian", "encoder"), ("pegasus", "decoder"), ("m2m_100", "encoder")])
def test_positions_of_a_file_must_be_those_that_the_model_computes(name: str, side: str, tmp_path: Path) -> None:
    folder = whole(name, tmp_path / "folder")
    weights = load_file(folder / WEIGHTS)
    table = dict(load_checkpoint(str(folder)).model.named_buffers())["source_embedding.positions"]
    key = f"model.{side}.embed_positions.weight"
    save_file(weights | {key: table.bfloat16()}, folder / WEIGHTS)
    load_checkpoint(str(folder))
    save_file(weights | {key: table * 1.5}, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=f"{key}' differs from the positions that such a model computes"):
        load_checkpoint(str(folder))
