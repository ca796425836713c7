"""Configs of small architectures that no model can have are refused; presets are of the sizes that were published."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

from txport.errors import ConfigError
from txport.models import architecture


@pytest.mark.parametrize(
    ("preset", "changes", "problem"),
    [
        ("gpt2-tiny", {"eos_id": 64}, "eos_id must lie in the model's vocabulary of 64, got 64"),
        ("gpt2-tiny", {"activation": "swish"}, "activation must be one of gelu_tanh, gelu, relu; got 'swish'"),
        ("opt-tiny", {"heads": 3}, "heads must divide d_model, got 3 for 32"),
        ("opt-tiny", {"norm": "both"}, "norm must be one of pre, post; got 'both'"),
        ("opt-tiny", {"max_length": 1}, "max_length must be at least 2, got 1"),
        ("relative-tiny", {"farthest": 0}, "farthest must be at least 1, got 0"),
        ("relative-tiny", {"position_offset": 2}, "position_offset is for a table of positions, got 2 for 'none'"),
        ("relative-tiny", {"sinusoids": "halves"}, "sinusoids is for sinusoidal positions, got 'halves' for 'none'"),
        ("t5-tiny", {"buckets": 10}, "buckets must be a multiple of 4, got 10"),
        ("t5-tiny", {"farthest": 8}, "farthest must be above half of the 16 buckets, got 8"),
        ("t5-tiny", {"norm_epsilon": 0.0}, "norm_epsilon must be above 0, got 0.0"),
        ("t5-tiny", {"head": "hidden"}, "decoder_layers is for other heads than 'hidden', got 2"),
        ("t5-tiny", {"head": "labels"}, "the head 'labels' needs labels that differ from each other"),
        ("t5-tiny", {"sentence": ("mean",)}, "sentence is for the heads hidden, got 'text'"),
        ("tiny", {"labels": ("a",)}, "labels is for other heads than 'text', got ('a',)"),
        ("tiny", {"wraps_last": True}, "wraps_last is for other heads than 'text', got True"),
        (
            "tiny",
            {"head": "labels", "labels": ("a",), "output_bias": True},
            "output_bias is for other heads than 'labels', got True",
        ),
        (
            "tiny",
            {"head": "labels", "labels": ("a",), "tied": "none", "target_vocab_size": 9},
            "the head 'labels' needs one vocabulary for source and target, got sizes 64 and 9",
        ),
    ],
)
def test_a_config_that_does_not_go_together_says_why(preset: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(problem)}$"):
        dataclasses.replace(architecture.presets()[preset], **changes)


PARAMETERS = {  # of published models
    "opt-125m": 125239296,
    "opt-350m": 331196416,
    "opt-1.3b": 1315758080,
    "opt-2.7b": 2651596800,
    "opt-6.7b": 6658473984,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_as_many_parameters_as_the_published_model(name: str) -> None:
    config = architecture.presets()[name]
    with torch.device("meta"):
        model = architecture.of(config).build(config)
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]


def test_presets_of_gpt2_have_about_the_parameters_that_their_names_say() -> None:
    presets = {name: each for name, each in architecture.presets().items() if re.fullmatch(r"gpt2-[\d.]+[mb]", name)}
    assert len(presets) == 9
    for name, config in presets.items():
        said = float(name[5:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
        values = config.to_dict()
        width = values["d_model"]
        size = width * (values["vocab_size"] + values["max_length"]) + values["decoder_layers"] * 12 * width**2
        assert size == pytest.approx(said, rel=0.08), name


# Vaswani et al. 2017, table 3: layers, D, feed-forward, heads, H.
@pytest.mark.parametrize(("name", "row"), [("base", (6, 512, 2048, 8, 64)), ("big", (6, 1024, 4096, 16, 64))])
def test_presets_of_the_first_transformer_are_those_of_its_paper(name: str, row: tuple[int, ...]) -> None:
    config: Any = architecture.presets()[name]
    assert (config.encoder_layers, config.d_model, config.feed_forward, config.heads, config.head_size) == row
    assert config.decoder_layers == config.encoder_layers
    assert (config.norm, config.positions, config.activation, config.tied) == ("post", "sinusoidal", "relu", "all")
    assert config.scale_embedding
