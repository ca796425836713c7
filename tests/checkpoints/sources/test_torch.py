"""State dicts of `torch.nn.Transformer`: what is loaded computes what PyTorch's own module does."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.checkpoints.sources.plain import check_logits, check_refused, damage, interleaved
from tests.seeded import bundle_of, check_steps
from txport.checkpoints.checkpoint import load_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_first": True},
    "gelu, no biases": {"activation": "gelu", "bias": False},
    "pre, no biases, another epsilon": {"norm_first": True, "bias": False, "layer_norm_eps": 1e-3},
}


class Seq2Seq(nn.Module):
    """A model of a user's own, with the names of PyTorch's tutorial of translation."""

    def __init__(self, *, final_norm: bool = True, **how: Any) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 2, 2, 1, 24, dropout=0.0, batch_first=True, **how)
        if not final_norm:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(26, 16)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(24, 16)})
        self.generator = nn.Linear(16, 24)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = torch.full((target.shape[1],) * 2, -torch.inf, dtype=torch.float64).triu(1)
        embedded = [
            table["embedding"](ids) * 4 + interleaved(ids.shape[1], 16)
            for table, ids in ((self.src_tok_emb, source), (self.tgt_tok_emb, target))
        ]
        found: Tensor = self.generator(self.transformer(*embedded, tgt_mask=mask))
        return found


def config_for(how: dict[str, Any], *, final_norm: bool = True) -> dict[str, Any]:
    """What a `config.json` says beside the weights."""
    return {
        "architecture": "transformer",
        "source_vocab_size": 26,
        "target_vocab_size": 24,
        "d_model": 16,
        "heads": 2,
        "feed_forward": 24,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "max_length": 32,
        "norm": "pre" if how.get("norm_first") else "post",
        "final_norm": final_norm,
        "norm_epsilon": how.get("layer_norm_eps", 1e-5),
        "activation": how.get("activation", "relu"),
        "bias": how.get("bias", True),
        "output_bias": True,
        "tied": "none",
    }


def seeded(**how: Any) -> Seq2Seq:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its fast path, which is not taken
        model = Seq2Seq(**how).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def in_double(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Without the fast path of inference, which is another computation."""
    return model.double().train()


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_loaded_computes_what_pytorch_does(name: str, final_norm: bool, tmp_path: Path) -> None:
    how = VARIANTS[name]
    model = seeded(final_norm=final_norm, **how)
    folder = save(tmp_path / "torch", config_for(how, final_norm=final_norm), model.state_dict())
    check_logits(folder, in_double(model), vocabulary=24)


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_exported_graphs_compute_what_pytorch_does(name: str, target: str, tmp_path: Path) -> None:
    how = VARIANTS[name]
    model = seeded(**how)
    checkpoint = load_checkpoint(str(save(tmp_path / "torch", config_for(how), model.state_dict())))
    drawn = torch.Generator().manual_seed(4)
    source, tokens = (torch.randint(3, 24, (3, length), generator=drawn) for length in (7, 20))
    expected = in_double(model)(source, tokens)
    assert expected.std() > 0.5  # a model that says nothing would agree with itself
    bundle = bundle_of(checkpoint, tmp_path / "bundle", target)
    check_steps(bundle, source, torch.tensor([7] * 3), tokens, expected)


def test_names_of_ones_own_take_rules(tmp_path: Path) -> None:
    model = seeded()
    renamed = {
        name.replace("transformer.", "", 1)
        .replace("src_tok_emb.embedding", "embed_in")
        .replace("generator", "head"): each
        for name, each in model.state_dict().items()
    }
    folder = save(tmp_path / "torch", {}, renamed)
    (folder / "config.json").unlink()
    lines = [f"{key} = {json.dumps(value)}" for key, value in config_for({}).items() if key != "architecture"]
    rules = [
        f"[[rule]]\nrename = {{ pattern = '^{theirs}', to = '{ours}' }}"
        for theirs, ours in {"embed_in[.]": "source_embedding.tokens.", "head[.]": "projection."}.items()
    ]
    text = "\n".join(['architecture = "transformer"', "[config]", *lines, *rules])
    (folder / "txport.toml").write_text(text)
    check_logits(folder, in_double(model), vocabulary=24)


def test_pickled_state_dicts_are_read_too(tmp_path: Path) -> None:
    model = seeded()
    folder = save(tmp_path / "torch", config_for({}), model.state_dict())
    (folder / "model.safetensors").unlink()
    torch.save({"model_state_dict": model.state_dict(), "epoch": 3}, folder / "model.pt")
    check_logits(folder, in_double(model), vocabulary=24)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    how = VARIANTS[str(rng.choice(sorted(VARIANTS)))]
    what, weights = damage(seeded(**how).state_dict(), rng)
    weights = {name: each.clone() for name, each in weights.items()}
    assert check_refused(save(tmp_path / "torch", config_for(how), weights)), what


def test_a_final_norm_that_the_config_does_not_say_is_refused(tmp_path: Path) -> None:
    config = config_for({})
    del config["final_norm"]
    message = check_refused(save(tmp_path / "torch", config, seeded().state_dict()))
    assert "unexpected transformer.encoder.norm.weight" in message
