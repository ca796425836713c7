"""Every key of `tokenizer_config.json` and `special_tokens_map.json` is read, changes nothing, or is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import TOKENIZERS
from txport.errors import CheckpointError
from txport.models.names import CONFIG, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG
from txport.text.convert import companions_of


def folder_of(name: str, to: Path, *, converted: bool = True, version: str = "4.57.6", **changes: Any) -> Path:
    """A recorded folder, perhaps with the `tokenizer.json` made of it, and changed settings."""
    shutil.copytree(TOKENIZERS / name, to)
    if converted:
        (to / TOKENIZER).write_text(str(companions_of(to)[TOKENIZER]), encoding="utf-8")
    change(to / TOKENIZER_CONFIG, **changes)
    change(to / CONFIG, transformers_version=version)
    return to


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dropout": 0.1}, "the key 'dropout', here 0.1, is not supported: no tokenizer of transformers that is known"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs .* is not supported; it must be {}"),
        ({"fix_mistral_regex": True}, "fix_mistral_regex True is not supported; it must be False"),
        ({"strange_token": 3}, "the key 'strange_token', here 3, is not supported"),
        (
            {"added_tokens_decoder": {"1": {"content": "<s>", "prefix": True}}},
            "added_tokens_decoder.1 has the key 'prefix', which is not supported",
        ),
    ],
)
def test_a_key_that_may_change_ids_is_refused_by_name(
    values: dict[str, Any], message: str, converted: bool, tmp_path: Path
) -> None:
    folder = folder_of("llama", tmp_path / "x", converted=converted, **values)
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json: {message}"):
        companions_of(folder)


def test_a_strange_key_of_the_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = folder_of("bert", tmp_path / "x", converted=False)
    change(folder / SPECIAL_TOKENS, image_token="<image>", rules=[1])  # noqa: S106
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json: the key 'rules', here \[1\], is not"):
        companions_of(folder)


def test_a_file_that_its_settings_agree_with_is_copied(tmp_path: Path) -> None:
    """Keys that change nothing among them."""
    unused = {"padding_side": "left", "max_length": 9, "legacy": False, "image_token": "<i>", "extra_ids": None}
    for name in ("llama", "gpt2", "t5", "xlm-roberta"):
        folder = folder_of(name, tmp_path / name, **unused)
        assert companions_of(folder)[TOKENIZER] == folder / TOKENIZER, name


@pytest.mark.parametrize(
    ("version", "flags", "ends"),
    [
        ("4.57.6", {"add_bos_token": False, "add_eos_token": True}, (None, "</s>")),
        ("4.57.6", {"add_eos_token": True}, ("<s>", "</s>")),
        ("5.24.0", {"add_bos_token": False, "add_eos_token": True}, ("<s>", None)),  # which reads the file alone
    ],
)
def test_start_and_end_are_those_of_the_version_that_saved_the_folder(
    version: str, flags: dict[str, bool], ends: tuple[str | None, ...], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    file = companions_of(folder_of("llama", tmp_path / "x", version=version, **flags))[TOKENIZER]
    read = Tokenizer.from_str(file if isinstance(file, str) else file.read_text(encoding="utf-8"))
    tokens = read.encode("a").tokens
    assert (tokens[0] == "<s>", tokens[-1] == "</s>") == tuple(each is not None for each in ends)


def test_a_space_that_the_file_does_not_add_is_refused(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "x", add_prefix_space=False)
    with pytest.raises(CheckpointError, match=r"add_prefix_space False contradicts tokenizer\.json; remove it"):
        companions_of(folder)


def test_a_token_with_two_ids_is_refused(tmp_path: Path) -> None:
    folder = folder_of("gpt2", tmp_path / "x", added_tokens_decoder={"9000": {"content": "<new>"}})
    with pytest.raises(CheckpointError, match=r"added_tokens_decoder gives '<new>' the id 9000, and tokenizer\.json "):
        companions_of(folder)


def test_named_tokens_are_those_of_the_map_in_a_folder_without_added_tokens(tmp_path: Path) -> None:
    from txport.text.settings import Settings

    for values, expected in (({}, "<map>"), ({"added_tokens_decoder": {}}, "<config>")):
        (tmp_path / TOKENIZER_CONFIG).write_text(json.dumps({"eos_token": "<config>", **values}), encoding="utf-8")
        (tmp_path / SPECIAL_TOKENS).write_text(json.dumps({"eos_token": "<map>"}), encoding="utf-8")
        assert Settings(tmp_path).token("eos_token") == expected
