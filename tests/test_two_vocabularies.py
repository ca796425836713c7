"""A vocabulary for sources, another for targets: Arabic letters in, Latin ones out, everywhere and on both targets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests import transformers_js
from tests.called import Cli
from tests.javascript import on_node
from tests.tiny import SPECIAL, reseal, tiny_config, tiny_model
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.checkpoints.folder import digest
from txport.errors import BundleError, TokenError, UnsupportedError
from txport.models.names import MANIFEST

ARABIC = (*SPECIAL, *"ابتثجحخدذر")
LATIN = (*SPECIAL, *"abcdefghijklmnopqrst")
TEXTS = ["باب", "حبر", "خ", "جذر"]
SEED = 11  # of a model that says various tokens
SHORT = 4 + 2  # of the target's tokens, those that a tokenizer knows that is too small


def save(folder: Path, target_tokenizer: str) -> Path:
    sizes: Any = {"source_vocab_size": len(ARABIC), "target_vocab_size": len(LATIN), "tied": "target"}
    model = tiny_model(tiny_config(**sizes), SEED)
    save_checkpoint(folder, model, spelling_tokenizer(ARABIC), target_tokenizer)
    (folder / "samples.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("pair") / "toy", spelling_tokenizer(LATIN))


@pytest.fixture(scope="module", params=["portable", "cpu"])
def exported(pair: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    return txport.export(pair, tmp_path_factory.mktemp("bundles") / "toy", target=request.param)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model with more tokens than its target's tokenizer has, as where a vocabulary is padded to a multiple."""
    folder = tmp_path_factory.mktemp("short")
    save(folder / "checkpoint", spelling_tokenizer(LATIN[:SHORT]))
    return txport.export(folder / "checkpoint", folder / "bundle")


@pytest.fixture
def copy(exported: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported.path, tmp_path / "pair"))


@pytest.mark.parametrize("option", [{"encoder_repetition_penalty": 1.5}, {"encoder_no_repeat_ngram_size": 1}])
def test_a_source_s_tokens_say_nothing_of_a_target_s(option: dict[str, Any], exported: Bundle) -> None:
    with pytest.raises(
        UnsupportedError, match=r"needs one vocabulary for sources and targets; this model reads 1\d tokens"
    ):
        txport.load(exported.path).generate(TEXTS, **option)
    (found,) = on_node(exported.path, [("generate", TEXTS[0], option)])
    assert found["error"] == "UnsupportedError"
    assert "needs one vocabulary for sources and targets; this model reads 1" in found["message"]


def spelt(tokens: list[int]) -> str:
    return " ".join(LATIN[token] for token in tokens if token >= len(SPECIAL))


def test_sources_are_read_in_one_and_targets_written_in_the_other(call: Cli, exported: Bundle) -> None:
    code, out, err = call("run", exported.path, *TEXTS, "--json", "--beams", 3, "--nbest", 2)
    assert (code, err) == (0, "")
    for line in map(json.loads, out.splitlines()):
        for each in line["hypotheses"]:
            assert each["output"] == spelt(each["tokens"]) != ""
    model = txport.load(exported.path)
    assert model.encode("باب") == [ARABIC.index(letter) for letter in (*"باب", "</s>")]
    expected = [spelt(found[0].tokens) for found in map(list, model.search(map(model.encode, TEXTS)))]
    plain = "".join(f"{output}\n" for output in expected)
    assert call("run", exported.path, *TEXTS) == call("run", exported.path, *TEXTS, "--stream") == (0, plain, "")
    assert [each.output for each in model.generate(TEXTS)] == expected
    assert model.generate("خ", prefixes="a b")[0].output.startswith("a b")
    assert call("run", exported.path, "bad")[0] == 2


def test_other_programs_find_a_tokenizer_for_each_side(exported: Bundle) -> None:
    folders = {"source_tokenizer": "tokenizer.json", "target_tokenizer": "target_tokenizer.json"}
    if exported.manifest.target != "portable":
        assert not any((exported.path / folder).exists() for folder in folders)
        return
    for folder, name in folders.items():
        assert (exported.path / folder / "tokenizer.json").read_bytes() == (exported.path / name).read_bytes()
        assert f"{folder}/tokenizer_config.json" in exported.manifest.files
    assert not (exported.path / "tokenizer_config.json").exists(), "a pipeline would write targets in Arabic"
    expected = [each.output for each in txport.load(exported.path).generate(TEXTS)]
    assert transformers_js.generate(exported.path, "pair", TEXTS) == expected


def test_given_targets_are_in_the_targets_vocabulary(call: Cli, exported: Bundle) -> None:
    code, out, err = call("score", exported.path, "باب", "a t s", "--json")
    assert (code, err, len(json.loads(out)["token_scores"])) == (0, "", 4)
    code, out, err = call("score", exported.path, "باب", "ب ت")
    assert (code, out, err) == (2, "", "txport: 'ب' is not a token of the vocabulary\n")


def test_it_is_proved_like_any_other(call: Cli, exported: Bundle, pair: Path, tmp_path: Path) -> None:
    assert call("verify", exported.path)[0] == 0
    outputs = [each.output for each in txport.load(exported.path).generate(TEXTS)]
    lines = tmp_path / "pairs.tsv"
    lines.write_text("".join(f"{text}\t{output}\n" for text, output in zip(TEXTS, outputs, strict=True)))
    done = call("parity", exported.path, "--checkpoint", pair, "--runtime", "ort", "--quality", lines)
    assert done[0] == 0, done
    assert "0.00 % of 4 texts wrong, PyTorch 0.00 %" in done[1]


def test_both_files_belong_to_checkpoint_and_bundle(exported: Bundle, pair: Path, copy: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "target_tokenizer.json"):
        assert (exported.path / name).read_bytes() == (pair / name).read_bytes()
        assert name in exported.manifest.files
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole.replace(b"</s>", b"</t>", 1))
        with pytest.raises(BundleError, match=rf"\W{name} was altered"):
            txport.load(copy)
        (copy / name).write_bytes(whole)
    other = Path(shutil.copytree(pair, tmp_path / "other"))
    assert digest(str(other)) == digest(str(pair))
    (other / "target_tokenizer.json").write_text(spelling_tokenizer((*SPECIAL, *"tsrqponmlkjihgfedcba")))
    assert digest(str(other)) != digest(str(pair))


def test_a_target_tokenizer_that_was_swapped_or_taken_away_is_refused(call: Cli, copy: Path) -> None:
    (copy / "target_tokenizer.json").write_text(spelling_tokenizer((*LATIN, "u")))
    reseal(copy)
    code, out, err = call("run", copy, "باب")
    assert (code, out) == (2, "")
    assert "target_tokenizer.json has 25 tokens, the model's target vocabulary 24: it belongs to another" in err
    code, out, _ = call("verify", copy)
    assert code == 1
    assert "the model's target vocabulary 24" in out
    manifest = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
    del manifest["files"]["target_tokenizer.json"]
    (copy / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    (copy / "target_tokenizer.json").unlink()
    assert "tokenizer.json can't serve both a source vocabulary of 14 and a target" in call("run", copy, "باب")[2]


@pytest.mark.parametrize("options", [(), ("--json",), ("--stream",)])
def test_an_id_that_has_no_token_is_written_as_nothing(call: Cli, short: Bundle, options: tuple[str, ...]) -> None:
    tokens = txport.load(short.path).generate("باب")[0].hypotheses[0].tokens
    lacking = sorted({id_ for id_ in tokens if id_ >= SHORT})
    code, out, err = call("run", short.path, "باب", *options)
    written = txport.load(short.path).tokenizer.decode([id_ for id_ in tokens if id_ < SHORT])
    assert (code, json.loads(out)["output"] if "--json" in options else out.rstrip("\n")) == (0, written)
    assert lacking
    assert err.startswith(f"txport: the tokenizer has no token for ids of the model ({lacking[0]}")
    assert err.endswith("they are written as nothing\n")
    assert err.count("\n") == 1


def test_only_naming_such_an_id_fails(short: Bundle) -> None:
    model = txport.load(short.path)
    every = tuple(range(SHORT, len(LATIN)))
    assert set(model.generate("باب", suppress_tokens=every)[0].output) <= set("ab ")
    (scored,) = model.score("باب", "a b a")
    assert scored.output == "a b a"
    assert model.tokenizer.decode([1, 4, 5, 2, 0]) == "a b"
    assert model.tokenizer.decode([4, SHORT, 5]) == "a b"
    assert model.tokenizer.lacks([4, SHORT]) == [SHORT]
    for ids in ([4, SHORT], [-1]):
        with pytest.raises(TokenError, match=rf"has no token for id {ids[-1]}: its ids go up to {SHORT - 1}"):
            model.tokenizer.tokens(ids)
