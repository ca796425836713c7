"""GPT-2 as transformers has it: logits and the tokens of every search, through the graphs of both targets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import txport
from tests import peers, transformers_js
from tests.architectures.gpt2_weights import (
    END,
    HEADS,
    LAYERS,
    LONGEST,
    PAD,
    PROMPTS,
    SEARCHES,
    VOCABULARY,
    WIDTH,
    expected,
    renamed,
    weights,
)
from tests.architectures.seeded import PLANS, bundle_of
from tests.runtimes.driven import ENGINES
from tests.tiny import edit_graph
from txport import bench, release
from txport.bundles.bundle import load_bundle
from txport.errors import ConfigError, UnsupportedError
from txport.models import architecture
from txport.models.architectures.gpt2 import GPT2, PRESETS, GPT2Config
from txport.models.checkpoint import load_checkpoint, save_checkpoint

KINDS = {"tied": True, "untied": False}


def config_of(**changes: Any) -> GPT2Config:
    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "heads": HEADS,
        "decoder_layers": LAYERS,
        "max_length": LONGEST,
    }
    return GPT2Config(**{**sizes, "pad_id": PAD, "eos_id": END, **changes})


def model_of(*, tied: bool) -> GPT2:
    """The same model as transformers', by the name table."""
    model = GPT2(config_of(tied=tied)).eval()
    own = {name: each for old, values in weights(tied=tied).items() for name, each in renamed(old, values)}
    found = model.load_state_dict({name: torch.from_numpy(values) for name, values in own.items()}, strict=False)
    assert found.unexpected_keys == []
    assert found.missing_keys == (["projection.weight"] if tied else [])
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each kind, and what they become."""
    folder = tmp_path_factory.mktemp("gpt2")
    for kind, tied in KINDS.items():
        save_checkpoint(folder / kind, model_of(tied=tied))
        for target in ENGINES:
            bundle_of(load_checkpoint(str(folder / kind)), folder / f"{kind}-{target}", target)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ENGINES)
def test_logits_are_those_of_transformers(folder: Path, kind: str, target: str) -> None:
    model = txport.load(folder / f"{kind}-{target}", runtime=ENGINES[target])
    texts = [str(prompt[0]) for prompt in PROMPTS]
    targets = [" ".join(map(str, prompt[1:])) for prompt in PROMPTS]
    pairs = [(text, given) for text, given in zip(texts, targets, strict=True) if given]
    found = list(model.logits([text for text, _ in pairs], [given for _, given in pairs]))
    wanted = [each[:-1] for each in expected()[kind]["logits"] if len(each) > 1]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("search", SEARCHES)
def test_tokens_are_those_of_transformers(folder: Path, kind: str, target: str, search: str) -> None:
    model = txport.load(folder / f"{kind}-{target}", runtime=ENGINES[target], threads=1)
    wanted = expected()[kind]["tokens"][search]
    found = model.search(PROMPTS, **SEARCHES[search])
    assert [[list(each.tokens) for each in row] for row in found] == wanted
    if target != "portable":
        slots = model.search(PROMPTS, batch_size=2, continuous=True, **SEARCHES[search])
        assert [[list(each.tokens) for each in row] for row in slots] == wanted


@pytest.mark.parametrize("number", range(6))
def test_every_variant_exports(tmp_path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    config = architecture.find("gpt2").draw(rng)
    torch.manual_seed(number)
    model = GPT2(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    save_checkpoint(tmp_path / "model", model)
    target, precision = PLANS[number % len(PLANS)]
    txport.export(tmp_path / "model", tmp_path / "bundle", target=target, precision=precision)


def test_published_sizes() -> None:
    """Of the parameters' numbers that the names say, those without the embeddings' share."""
    said = {"125m": 0.125, "350m": 0.35, "1.3b": 1.3, "2.7b": 2.7, "6.7b": 6.7, "13b": 13, "30b": 30, "66b": 66}
    said["175b"] = 175
    assert set(PRESETS) == {"gpt2-tiny", *(f"gpt2-{name}" for name in said)}
    for name, billions in said.items():
        with torch.device("meta"):
            config = PRESETS[f"gpt2-{name}"]
            size = (
                config.d_model * (config.vocab_size + config.max_length)
                + config.decoder_layers * 12 * config.d_model**2
            )
        assert size == pytest.approx(billions * 1e9, rel=0.08), name
        assert config.eos_id == 50256
        assert config.max_length == (1024 if name == "125m" else 2048)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads must divide d_model, got 3 for 32"),
        ({"eos_id": 24}, "eos_id must lie in the model's vocabulary of 24, got 24"),
        ({"max_length": 1}, "max_length must be at least 2, got 1"),
        ({"activation": "swish"}, "activation must be one of gelu_tanh, gelu, relu; got 'swish'"),
    ],
)
def test_configs_that_no_model_can_have(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(**changes)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_js_finds_the_same(folder: Path, kind: str) -> None:
    wanted = [row[0][:12] for row in expected()[kind]["tokens"]["greedy"]]
    assert transformers_js.proceed(folder / f"{kind}-portable", PROMPTS, 12) == wanted


def test_optimum_finds_the_same_in_a_batch(folder: Path) -> None:
    """Its environment is that of `make test`; padding stands behind an end."""
    theirs = {"max_new_tokens": "max_new_tokens", "beams": "num_beams", "nbest": "num_return_sequences"}
    pairs = list(zip(KINDS, ["short", "beams"], strict=True))
    jobs = [
        {
            "bundle": str(folder / f"{kind}-portable"),
            "prompts": PROMPTS,
            "pad": PAD,
            "options": {theirs[name]: value for name, value in SEARCHES[search].items()},
        }
        for kind, search in pairs
    ]
    for (kind, search), found in zip(pairs, peers.proceed(jobs), strict=True):
        wanted = [tokens for row in expected()[kind]["tokens"][search] for tokens in row]
        for row, tokens in zip(found, wanted, strict=True):
            assert row == [*tokens, *[PAD] * (len(row) - len(tokens))], (kind, search)


def weaken(name: str) -> Callable[[onnx.ModelProto], None]:
    """A change of one weight that hurts."""

    def edit(model: onnx.ModelProto) -> None:
        (tensor,) = (each for each in model.graph.initializer if each.name == name)
        values = onnx.numpy_helper.to_array(tensor).copy()
        values *= 1.1
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))

    return edit


def test_the_culprit_of_a_planted_fault_is_named(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder / "tied-portable", tmp_path / "broken")
    bundle = edit_graph(broken, "decoder", weaken("decoder.1.feed_forward.outer.weight"))
    assert not release.parity(bundle, folder / "tied", {"ort": "cpu"}).passed
    culprit = release.bisect(bundle, folder / "tied")
    assert culprit is not None
    assert "decoder.1.feed_forward.outer" in str(culprit)


def test_bench_tells_of_prompts_and_of_new_tokens(folder: Path) -> None:
    bundle = load_bundle(folder / "tied-cpu")
    found = bench.run(bundle, None, ["ort"], bench.Protocol(batch=2, source=9, tokens=4, rounds=3, threads=1))
    assert {"prefill", "prompt tokens", "new tokens"} <= found["units"].keys()
    assert list(found["runtimes"]["ort"])[:5] == ["load", "prefill", "first token", "further token", "prompt tokens"]
    with pytest.raises(UnsupportedError, match=r"source and tokens together must not exceed .*, 32"):
        bench.run(bundle, None, ["ort"], bench.Protocol(source=20, tokens=16, rounds=3))
