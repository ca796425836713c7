from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_config
from txport.checkpoints.checkpoint import config_of
from txport.errors import ConfigError
from txport.models.architectures.transformer import TransformerConfig, facts
from txport.models.facts import Tokens

SIZES = {"source_vocab_size": 20, "target_vocab_size": 20}


def test_round_trip(tmp_path: Path) -> None:
    config = tiny_config(norm="post", positions="learned", tied="target", dropout=0.0, norm_epsilon=1e-6)
    assert TransformerConfig.from_dict(config.to_dict()) == config
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    assert config_of(tmp_path) == config
    file.write_text(json.dumps({"architecture": "transformer", **config.to_dict()}), encoding="utf-8")
    assert config_of(tmp_path) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heds": 4}, r"unknown key 'heds' \(did you mean 'heads'\?\)"),
        ({"quux": 4}, r"unknown key 'quux'$"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"d_model": -16}, "d_model must be at least 1, got -16"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"d_model": 20, "heads": 3}, "heads must divide d_model, got 3 for 20; or give a head_size"),
        ({"d_model": 15, "heads": 3}, "sinusoidal positions need an even d_model, got 15"),
        ({"target_vocab_size": 21}, "tied 'all' needs one vocabulary for source and target, got sizes 20 and 21"),
        ({"norm": "middle"}, "norm must be one of post, pre; got 'middle'"),
        ({"tied": ""}, "tied must be one of all, none, target; got ''"),
        ({"heads": "8"}, "heads must be int, got '8'"),
        ({"heads": 8.0}, "heads must be int, got 8.0"),
        ({"heads": None}, "heads must be int, got None"),
        ({"norm": ["pre"]}, r"norm must be str, got \['pre'\]"),
        ({"heads": True}, "heads must be int, got True"),
        ({"dropout": False}, "dropout must be float, got False"),
        ({"scale_embedding": 1}, "scale_embedding must be bool, got 1"),
        ({"dropout": 1.0}, r"dropout must be below 1, got 1.0"),
        ({"dropout": float("nan")}, r"dropout must be at least 0, got nan"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon must be above 0, got 0.0"),
        ({"eos_id": 20}, "eos_id must lie in the target vocabulary of 20, got 20"),
        ({"source_vocab_size": 2, "tied": "none"}, "eos_id must lie in the source vocabulary of 2, got 2"),
        ({"source_vocab_size": 5, "tied": "none", "pad_id": 7}, "pad_id must lie in the source vocabulary of 5, got 7"),
        (
            {"source_vocab_size": 3, "tied": "none", "bos_id": 7, "add_source_bos": True},
            "bos_id must lie in the source",
        ),
        ({"add_source_eos": 0}, "add_source_eos must be bool, got 0"),
        ({"sinusoids": "fairseq", "d_model": 2, "heads": 1}, "sinusoids 'fairseq' need a d_model of at least 4, got 2"),
        ({"positions": "learned", "sinusoids": "halves"}, "sinusoids is for sinusoidal positions, got 'halves'"),
        ({"head_size": -1}, "head_size must be at least 0, got -1"),
        ({"output": "probs"}, "output must be one of logits, log_probs; got 'probs'"),
        ({"bias": 1}, "bias must be bool, got 1"),
        ({"pad_id": -1}, "pad_id must lie in the target vocabulary of 20, got -1"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformerConfig.from_dict({**SIZES, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0},
        {"d_model": 15, "heads": 3, "positions": "learned"},
        {"target_vocab_size": 9, "tied": "target"},
        {"d_model": 20, "heads": 3, "head_size": 8},
        {"positions": "learned", "position_offset": 2},
        {"position_offset": 2},
        {"source_vocab_size": 3, "tied": "none", "bos_id": 7},
        {"source_vocab_size": 3, "tied": "none", "eos_id": 7, "add_source_eos": False},
    ],
)
def test_accepted(changes: dict[str, Any]) -> None:
    config = TransformerConfig.from_dict({**SIZES, **changes})
    assert {name: getattr(config, name) for name in changes} == changes


def test_a_config_without_the_keys_of_special_tokens_is_what_it_was() -> None:
    def sources(**changes: bool) -> Tokens:
        return facts(TransformerConfig.from_dict({**SIZES, **changes})).reads

    assert sources().with_special([5, 6]) == [5, 6, 2]
    assert sources(add_source_bos=True).with_special([5]) == [1, 5, 2]
    assert sources(add_source_eos=False).with_special([5]) == [5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architecture": "rnn"}, "unknown architecture 'rnn'; there are .*transformer"),
        ({"architecture": ["transformer"]}, "unknown architecture "),
        ({"architecture": "../transformer"}, "unknown architecture "),
        ({"architecture": None}, "unknown architecture None"),
        ({"family": "encoder"}, "unknown key 'family'"),
        ({"family": "encoder-decoder", "architecture": "transformer"}, "unknown key 'family'"),
    ],
)
def test_an_architecture_that_there_is_not_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **values}), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        config_of(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_config_of_the_time_before_architectures_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "family": "encoder-decoder"}), encoding="utf-8")
    assert config_of(tmp_path) == TransformerConfig.from_dict(SIZES)


def test_missing_key() -> None:
    with pytest.raises(ConfigError, match="key 'source_vocab_size' is missing") as caught:
        TransformerConfig.from_dict({"target_vocab_size": 4})
    assert "target_vocab_size" not in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError, match="head_count") as caught:
        TransformerConfig.from_dict({"head_count": 1, "layer_count": 2})
    for part in ("layer_count", "'source_vocab_size' is missing", "'target_vocab_size' is missing"):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match=r"heads must be at least 1, got 0.*dropout"):
        tiny_config(heads=0, dropout=2.0)


@pytest.mark.parametrize("name", list(TransformerConfig.choices()))
def test_choices_are_fields_with_a_default_among_them(name: str) -> None:
    field = {field.name: field for field in dataclasses.fields(TransformerConfig)}[name]
    assert field.default in TransformerConfig.choices()[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe{}", "is not UTF-8 text"),
        (b'{"heads": NaN}', "NaN is no number of JSON"),
        (b'{"heads": 1, "heads": 2}', "the key 'heads' is there twice"),
        (b"[" * 200_000, "is nested too deep"),
        (b'{"heads": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
        (b" " * (1 << 21), "has 2097152 bytes, expected at most 1048576"),
        (b"[1]", "holds a list, expected an object"),
        (b"{}", "key 'source_vocab_size' is missing"),
    ],
)
def test_file_refused_by_name(text: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=message) as caught:
        config_of(tmp_path)
    assert str(file) in str(caught.value)
