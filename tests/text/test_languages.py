"""Languages that a model is told by tokens: around a source, and as the first token of a target."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import txport
from tests.seeded import bundle_of
from tests.text.grown import TOKENIZERS, grown
from tests.tiny import tiny_facts
from txport.bundles.hugging_face import tokenizer_config
from txport.checkpoints.checkpoint import load_checkpoint
from txport.cli.commands import cli
from txport.errors import BundleError, CheckpointError, UnsupportedError
from txport.models.names import TEXT, TOKENIZER, TOKENIZER_CONFIG
from txport.text.convert import companions_of
from txport.text.file import FileTokenizer
from txport.text.languages import LanguageReader
from txport.text.usage import Chat, Usage, read_usage, write_usage

TOLD: dict[str, Any] = {"tokens": {"a": "b"}, "before": [], "after": [], "source": None, "target": "forced"}
LINE = "The weather was fine"


def reader_of(folder: Path) -> LanguageReader:
    files = companions_of(folder)
    languages = read_usage(folder / TEXT, files[TEXT]).languages
    assert languages is not None
    return LanguageReader(FileTokenizer(folder / TOKENIZER, content=str(files[TOKENIZER])), languages)


@pytest.mark.parametrize(
    ("name", "default", "other", "token", "place"),
    [
        ("nllb", "eng_Latn", "deu_Latn", "deu_Latn", 0),
        ("mbart", "en_XX", "de_DE", "de_DE", -1),
        ("mbart50", "de_DE", "zh_CN", "zh_CN", 0),
        ("m2m100", "en", "__zh__", "__zh__", 0),
    ],
)
def test_a_source_has_the_token_of_its_language(name: str, default: str, other: str, token: str, place: int) -> None:
    reader = reader_of(TOKENIZERS / name)
    usual = reader.encode(LINE)
    assert usual == reader.between(default, None).encode(LINE) == reader.inner.encode(LINE)
    told = reader.between(other, None).encode(LINE)
    assert told[place] == reader.inner.id_of(token) != usual[place]
    assert told[1:-1] == usual[1:-1]
    with pytest.raises(UnsupportedError, match=r"there is no language 'Klingon'; there are .* and \d+ more"):
        reader.between("Klingon", None)


def test_a_target_has_it_where_the_model_is_told_there() -> None:
    assert reader_of(TOKENIZERS / "nllb").between(None, "deu_Latn").forced is not None
    assert reader_of(TOKENIZERS / "nllb").forced is None
    with pytest.raises(UnsupportedError, match="its decoder starts with that of its config; remove target_language"):
        reader_of(TOKENIZERS / "mbart").between(None, "de_DE")
    marian = reader_of(TOKENIZERS / "marian-languages")
    german = marian.inner.id_of(">>deu<<")
    assert marian.between(None, "deu").encode(LINE) == [german, *marian.encode(LINE)]
    assert marian.between(None, ">>deu<<").encode(LINE) == marian.encode(">>deu<< " + LINE)
    assert german not in marian.encode(f"{LINE} >>deu<<", "skip"), "a language is told at the beginning only"
    with pytest.raises(UnsupportedError, match="no source language"):
        marian.between("deu", None)


def test_the_first_nllb_puts_it_behind_a_source(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TOKENIZERS / "nllb", tmp_path / "nllb"))
    values = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values | {"legacy_behaviour": True}), encoding="utf-8")
    first, *middle, end = reader_of(TOKENIZERS / "nllb").encode(LINE)
    assert reader_of(folder).encode(LINE) == [*middle, end, first]


@pytest.mark.parametrize("name", ["nllb", "mbart", "mbart50", "m2m100"])
def test_transformers_5_names_languages_by_another_key(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TOKENIZERS / name, tmp_path / name))
    values = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    values["extra_special_tokens"] = values.pop("additional_special_tokens")
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values), encoding="utf-8")
    (folder / "special_tokens_map.json").unlink()
    assert reader_of(folder).languages == reader_of(TOKENIZERS / name).languages


def test_a_token_that_a_user_added_is_a_language(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TOKENIZERS / "nllb", tmp_path / "nllb"))
    values = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    size = 1 + max(map(int, values["added_tokens_decoder"]))
    values["added_tokens_decoder"][str(size)] = {"content": "tyv_Cyrl", "special": True}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values), encoding="utf-8")
    reader = reader_of(folder)
    assert "tyv_Cyrl" not in reader.languages.tokens
    assert reader.between("tyv_Cyrl", None).encode(LINE)[0] == size
    assert reader.between(None, "tyv_Cyrl").forced == size
    with pytest.raises(UnsupportedError, match="there is no language 'tyv_Latn'"):
        reader.between("tyv_Latn", None)


def test_a_folder_that_names_no_languages_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TOKENIZERS / "nllb", tmp_path / "nllb"))
    for name in (TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"):
        (folder / name).unlink()
    (folder / TOKENIZER_CONFIG).write_text('{"tokenizer_class": "NllbTokenizer"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="additional_special_tokens must name src_lang and all languages; save"):
        companions_of(folder)


def test_m2m100_knows_its_languages_without_a_list(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(TOKENIZERS / "m2m100", tmp_path / "m2m100"))
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (folder / name).unlink()
    (folder / TOKENIZER_CONFIG).write_text('{"tokenizer_class": "M2M100Tokenizer"}', encoding="utf-8")
    assert reader_of(folder).encode(LINE) == reader_of(TOKENIZERS / "m2m100").encode(LINE)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mbart50")
    size = 1 + max(
        FileTokenizer(Path("x"), content=str(companions_of(TOKENIZERS / "mbart50")[TOKENIZER])).vocabulary.values()
    )
    ids = {"eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2}
    checkpoint = load_checkpoint(str(grown(folder / "model", "mbart", "mbart50", size, **ids)))
    return bundle_of(checkpoint, folder / "bundle").path


def test_a_bundle_is_told_languages(spoken: Path) -> None:
    model = txport.load(spoken)
    chinese = model.tokenizer.ids("zh_CN")[0]
    how: dict[str, Any] = {"max_new_tokens": 4}
    said = model.generate(LINE, target_language="zh_CN", **how)[0]
    assert said.hypotheses[0].tokens[0] == chinese
    assert said == model.between(target_language="zh_CN").generate(LINE, **how)[0]
    assert model.encode(LINE)[0] == model.tokenizer.ids("de_DE")[0], "the tokenizer's own, as its config says"
    run = ["run", str(spoken), "--max-new-tokens", "4", LINE]
    shown = CliRunner().invoke(cli, [*run, "--source-language", "en_XX", "--target-language", "zh_CN"])
    expected = model.generate(LINE, source_language="en_XX", target_language="zh_CN", **how)[0].output
    assert shown.output.rstrip("\n") == expected
    streamed = CliRunner().invoke(cli, [*run, "--stream", "--source-language", "en_XX", "--target-language", "zh_CN"])
    assert streamed.output == shown.output
    assert "no target language" not in shown.stderr
    chosen = CliRunner().invoke(cli, run)
    assert chosen.stderr == "txport: no target language is given, so the model chooses one; --target-language sets it\n"
    refused = CliRunner().invoke(cli, [*run, "--target-language", "xx"])
    assert isinstance(refused.exception, UnsupportedError)


def test_a_model_without_languages_refuses_them(spoken: Path, copied: Path) -> None:
    model = txport.load(copied)
    with pytest.raises(UnsupportedError, match="this model has no language option; remove target_language"):
        model.generate("a", target_language="deu")
    refused = CliRunner().invoke(cli, ["run", str(copied), "a", "--source-language", "x"])
    assert "remove --source-language" in str(refused.exception)
    refused = CliRunner().invoke(cli, ["run", str(spoken), "--ids", "3 2", "--target-language", "de_DE"])
    assert "--ids gives all tokens as numbers; it can't be combined with --target-language" in str(refused.exception)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"languages": {}}, "does not say how texts are used"),
        ({"languages": {**TOLD, "tokens": {}}}, "1 to"),
        ({"languages": {**TOLD, "before": [None]}}, "the source must have a language"),
        ({"languages": {**TOLD, "source": "c"}}, "there is no language 'c'"),
        ({"languages": {**TOLD, "target": "x"}}, "target must"),
        ({"clean_up": 1}, "clean_up must"),
        ({"chat": {"template": 3, "variables": {}}}, "must be a text"),
        ({"chat": {"template": "x" * 300_000, "variables": {}}}, "a template may have"),
        ({"chat": {"template": "", "variables": {"a": [3]}}}, "must be a text"),
    ],
)
def test_a_text_json_that_says_nothing_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {**json.loads(write_usage(Usage())), **change}
    with pytest.raises(BundleError, match=message):
        read_usage(tmp_path / TEXT, json.dumps(values))


def test_other_programs_find_it_in_tokenizer_config(tmp_path: Path) -> None:
    files = companions_of(TOKENIZERS / "nllb")
    (tmp_path / TOKENIZER).write_text(str(files[TOKENIZER]), encoding="utf-8")
    usage = read_usage(tmp_path / TEXT, files[TEXT])
    chat = Chat(template="{{ bos_token }}", variables={"bos_token": "<s>"})
    both = [{"name": "default", "template": chat.template}, {"name": "tool_use", "template": "{{ tools }}"}]
    for changes, expected in (
        ({}, {"clean_up_tokenization_spaces": False, "split_special_tokens": True}),
        ({"clean_up": True}, {"clean_up_tokenization_spaces": True}),
        ({"chat": chat}, {"chat_template": "{{ bos_token }}", "bos_token": "<s>", "split_special_tokens": False}),
        ({"chat": dataclasses.replace(chat, tool_use="{{ tools }}")}, {"chat_template": both}),
    ):
        text = write_usage(dataclasses.replace(usage, **changes))  # type: ignore[arg-type]
        (tmp_path / TEXT).write_text(text, encoding="utf-8")
        config = tokenizer_config(tmp_path / TOKENIZER, {"pad_token": 1}, tiny_facts())
        assert expected.items() <= config.items()
        assert "deu_Latn" in config["additional_special_tokens"]
