"""Marian's files and its own computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from tests.checkpoints.sources.plain import attention, norm, rounded, tensor2tensor
from txport.checkpoints.sources.marian.folder import OPTIONS

PLAIN: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": 16,
    "dim-vocabs": [30, 26],
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": 4,
    "transformer-dim-ffn": 24,
    "transformer-decoder-dim-ffn": 0,
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-ffn-activation": "relu",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "transformer-guided-alignment-layer": "last",
    "transformer-train-position-embeddings": False,
    "tied-embeddings": True,
    "tied-embeddings-src": False,
    "tied-embeddings-all": False,
    "input-types": [],
    "lemma-dim-emb": 0,
    "ulr": False,
    "skip": False,
    "version": "v1.11.0",
}
ALL = {"tied-embeddings-all": True, "dim-vocabs": [30, 30]}
FIRST = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {},
    "one vocabulary": ALL,
    "pre": {**FIRST, "transformer-ffn-activation": "swish"},
    "norms of embeddings, nothing tied": {"transformer-postprocess-emb": "nd", "tied-embeddings": False},
    "embeddings tied": {**ALL, "tied-embeddings-all": False, "tied-embeddings": False, "tied-embeddings-src": True},
    "all tied in two steps": {**ALL, "tied-embeddings-all": False, "tied-embeddings-src": True},
    "no bias": {"output-omit-bias": True},
    "top": {"transformer-postprocess-top": "n"},
    "pre without top": {**FIRST, "transformer-postprocess-top": ""},
}


def tied(options: dict[str, Any]) -> tuple[bool, bool]:
    """Whether both embeddings are one matrix, and whether the projection is the target's."""
    src = options["tied-embeddings-src"]
    whole = options["tied-embeddings-all"]
    return src or whole, options["tied-embeddings"] or whole


def weights_of(options: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    width = options["dim-emb"]
    inner = options["transformer-dim-ffn"]
    pre = "_pre" if "n" in options["transformer-preprocess"] else ""
    found: dict[str, Any] = {}

    def add_norm(name: str, end: str) -> None:
        found[f"{name}_ln_scale{end}"] = 1 + rounded(rng, 1, width)
        found[f"{name}_ln_bias{end}"] = rounded(rng, 1, width)

    for side, depth in (("encoder", "enc-depth"), ("decoder", "dec-depth")):
        for number in range(1, options[depth] + 1):
            for kind in ("self", "context")[: 1 + (side == "decoder")]:
                scope = f"{side}_l{number}_{kind}"
                for letter in "qkvo":
                    found[f"{scope}_W{letter}"] = rounded(rng, width, width)
                    found[f"{scope}_b{letter}"] = rounded(rng, 1, width)
                add_norm(f"{scope}_Wo", pre)
            scope = f"{side}_l{number}_ffn"
            found |= {f"{scope}_W1": rounded(rng, width, inner), f"{scope}_b1": rounded(rng, 1, inner)}
            found |= {f"{scope}_W2": rounded(rng, inner, width), f"{scope}_b2": rounded(rng, 1, width)}
            add_norm(f"{scope}_ffn", pre)
        if "n" in options["transformer-postprocess-top"]:
            add_norm(f"{side}_top", "")
        if "n" in options["transformer-postprocess-emb"]:
            add_norm(f"{side}_emb", "_pre")
    source, target = options["dim-vocabs"]
    are_one, is_projection = tied(options)
    if are_one:
        found["Wemb"] = rounded(rng, source, width)
    else:
        found |= {"encoder_Wemb": rounded(rng, source, width), "decoder_Wemb": rounded(rng, target, width)}
    if not is_projection:
        found["decoder_ff_logit_out_Wt"] = rounded(rng, target, width)
    if not options.get("output-omit-bias"):
        found["decoder_ff_logit_out_b"] = rounded(rng, 1, target)
    return found


def save(folder: Path, options: dict[str, Any], weights: dict[str, Any], name: str = "model.npz") -> Path:
    folder.mkdir(exist_ok=True)
    text = np.frombuffer(yaml.safe_dump(options).encode() + b"\0", np.int8)
    np.savez(folder / name, **weights, **{OPTIONS: text})
    return folder


class Marian:
    """Marian's own computation, by the names and layouts of its file."""

    def __init__(self, options: dict[str, Any], weights: dict[str, Any]) -> None:
        self.options = options
        self.weights = {name: torch.from_numpy(each).double() for name, each in weights.items()}
        self.pre = options["transformer-preprocess"]
        self.post = options["transformer-postprocess"]

    def affine(self, x: Tensor, scope: str, end: str) -> Tensor:
        return x @ self.weights[f"{scope}_W{end}"] + self.weights[f"{scope}_b{end}"]

    def steps(self, ops: str, x: Tensor, before: Tensor | None, scope: str, end: str) -> Tensor:
        for op in ops:
            if op == "a":
                assert before is not None
                x = x + before
            if op == "n":
                names = (f"{scope}_ln_scale{end}", f"{scope}_ln_bias{end}")
                x = norm(x, *(self.weights[name][0] for name in names), 1e-6)
        return x

    def attend(self, x: Tensor, over: Tensor | None, scope: str) -> Tensor:
        query = self.steps(self.pre, x, None, f"{scope}_Wo", "_pre")
        keys = query if over is None else over
        projected = (self.affine(each, scope, end) for each, end in ((query, "q"), (keys, "k"), (keys, "v")))
        is_causal = scope.startswith("decoder") and over is None
        mixed = attention(*projected, self.options["transformer-heads"], is_causal=is_causal)
        return self.steps(self.post, self.affine(mixed, scope, "o"), x, f"{scope}_Wo", "")

    def feed_forward(self, x: Tensor, scope: str) -> Tensor:
        activation = {"relu": F.relu, "swish": F.silu}[self.options["transformer-ffn-activation"]]
        inner = activation(self.affine(self.steps(self.pre, x, None, f"{scope}_ffn", "_pre"), scope, "1"))
        return self.steps(self.post, self.affine(inner, scope, "2"), x, f"{scope}_ffn", "")

    def stack(self, embedded: Tensor, side: str, over: Tensor | None) -> Tensor:
        width = embedded.shape[-1]
        x = embedded * width**0.5 + tensor2tensor(embedded.shape[1], width)
        x = self.steps(self.options["transformer-postprocess-emb"], x, None, f"{side}_emb", "_pre")
        for number in range(1, self.options["enc-depth" if side == "encoder" else "dec-depth"] + 1):
            scope = f"{side}_l{number}"
            x = self.attend(x, None, f"{scope}_self")
            if over is not None:
                x = self.attend(x, over, f"{scope}_context")
            x = self.feed_forward(x, f"{scope}_ffn")
        return self.steps(self.options["transformer-postprocess-top"], x, None, f"{side}_top", "")

    def table(self, side: str) -> Tensor:
        return self.weights["Wemb" if tied(self.options)[0] else f"{side}_Wemb"]

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """`target` begins with anything: the decoder starts from zeros."""
        encoded = self.stack(self.table("encoder")[source], "encoder", None)
        shifted = F.pad(self.table("decoder")[target[:, 1:]], (0, 0, 1, 0))
        decoded = self.stack(shifted, "decoder", encoded)
        own = self.weights.get("decoder_ff_logit_out_Wt")
        bias = self.weights.get("decoder_ff_logit_out_b")
        logits = decoded @ (self.table("decoder") if own is None else own).T
        return logits if bias is None else logits + bias
