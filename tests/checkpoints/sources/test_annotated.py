"""State dicts of The Annotated Transformer, by the names of its own modules, as its code saves them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.checkpoints.sources.plain import Drawn, Named, check_logits, check_refused, damage, interleaved

CONFIG: dict[str, Any] = {
    "architecture": "annotated",
    "source_vocab_size": 26,
    "target_vocab_size": 24,
    "layers": 2,
    "d_model": 16,
    "feed_forward": 24,
    "heads": 2,
    "max_length": 32,
}


def weights_of() -> dict[str, Tensor]:
    drawn = Drawn()
    for side, kinds in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "src_attn"))):
        for number in range(2):
            scope = f"{side}.layers.{number}"
            for place in range(4):
                for kind in kinds:
                    drawn.linear(f"{scope}.{kind}.linears.{place}", 16, 16)
            drawn.linear(f"{scope}.feed_forward.w_1", 24, 16)
            drawn.linear(f"{scope}.feed_forward.w_2", 16, 24)
            for place in range(len(kinds) + 1):
                drawn.norm(f"{scope}.sublayer.{place}.norm", ("a_2", "b_2"))
        drawn.norm(f"{side}.norm", ("a_2", "b_2"))
    for name, words in (("src_embed", 26), ("tgt_embed", 24)):
        drawn.add(f"{name}.0.lut.weight", words, 16)
        drawn.found[f"{name}.1.pe"] = interleaved(5000, 16).float()[None]
    drawn.linear("generator.proj", 24, 16)
    return drawn.found


class Annotated(Named):
    """Its own computation: norms come first, and divide by the unbiased deviation plus epsilon."""

    def norm(self, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.{end}"] for end in ("a_2", "b_2"))
        return lambda x: weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias

    def stack(self, ids: Tensor, side: str, over: Tensor | None) -> Tensor:
        table = self.weights[f"{'src' if side == 'encoder' else 'tgt'}_embed.0.lut.weight"]
        x = table[ids] * math.sqrt(16) + interleaved(ids.shape[1], 16)
        for number in range(2):
            scope = f"{side}.layers.{number}"
            kinds = [("self_attn", None), ("src_attn", over)][: 1 + (over is not None)]
            for place, (kind, keys) in enumerate(kinds):
                query, key, value, out = (f"{scope}.{kind}.linears.{each}" for each in range(4))
                is_causal = side == "decoder" and keys is None
                attend = self.attend((query, key, value, out), keys, is_causal=is_causal)
                x = self.add(x, f"{scope}.sublayer.{place}.norm", attend)
            names = (f"{scope}.feed_forward.w_1", f"{scope}.feed_forward.w_2")
            x = self.add(x, f"{scope}.sublayer.{len(kinds)}.norm", self.feed_forward(*names, F.relu))
        return self.norm(f"{side}.norm")(x)

    def log_probs(self, source: Tensor, target: Tensor) -> Tensor:
        decoded = self.stack(target, "decoder", self.stack(source, "encoder", None))
        return self.linear("generator.proj")(decoded).log_softmax(-1)


def save(folder: Path, weights: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(weights, folder / "multi30k_model_final.pt")
    return folder


def test_what_is_loaded_computes_what_its_code_does(tmp_path: Path) -> None:
    weights = weights_of()
    plain = Annotated(weights, 2, 1e-6, first=True)
    check_logits(save(tmp_path / "annotated", weights), plain.log_probs, vocabulary=24)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    weights = {name: each for name, each in weights_of().items() if not name.endswith(".pe")}
    what, changed = damage(weights, np.random.default_rng(seed))
    assert check_refused(save(tmp_path / "annotated", changed)), what
