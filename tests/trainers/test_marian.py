"""Marian's `.npz`: what is loaded computes what Marian does."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from tests.trainers.plain import attention, check_logits, check_refused, damage, norm, rounded, tensor2tensor
from txport.errors import ConfigError
from txport.models.checkpoint import config_of, load_checkpoint
from txport.models.sources.marian import NEVER, OPTIONS

SIZES = {"source": 30, "target": 26, "width": 16, "inner": 24}
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
    src, whole = options["tied-embeddings-src"], options["tied-embeddings-all"]
    return src or whole, options["tied-embeddings"] or whole


def weights_of(options: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
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
        self.pre, self.post = options["transformer-preprocess"], options["transformer-postprocess"]

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


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_loaded_computes_what_marian_does(name: str, tmp_path: Path) -> None:
    options = PLAIN | VARIANTS[name]
    weights = weights_of(options)
    folder = save(tmp_path / "marian", options, weights)
    check_logits(folder, Marian(options, weights).logits, vocabulary=26, cut=1)


def test_the_start_token_is_zeros_and_is_never_written(tmp_path: Path) -> None:
    model = load_checkpoint(str(save(tmp_path / "marian", PLAIN, weights_of(PLAIN)))).model
    start = model.facts.writes.start
    assert start == 26
    assert not model.target_embedding.tokens.weight[start].any()
    assert model.projection.bias[start] == NEVER


def test_old_files_have_the_projection_the_other_way_round(tmp_path: Path) -> None:
    options = PLAIN | {"tied-embeddings": False}
    weights = weights_of(options)
    old = dict(weights)
    old["decoder_ff_logit_out_W"] = np.ascontiguousarray(old.pop("decoder_ff_logit_out_Wt").T)
    check_logits(save(tmp_path / "marian", options, old), Marian(options, weights).logits, vocabulary=26, cut=1)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    options = PLAIN | VARIANTS[str(rng.choice(sorted(VARIANTS)))]
    what, weights = damage(weights_of(options), rng)
    assert check_refused(save(tmp_path / "marian", options, weights)), what


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = save(tmp_path / "marian", PLAIN, weights_of(PLAIN)) / "model.npz"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "is not a whole .npz file" in check_refused(path.parent)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_were_changed_are_refused_or_make_no_difference(seed: int, tmp_path: Path) -> None:
    path = save(tmp_path / "marian", PLAIN, weights_of(PLAIN)) / "model.npz"
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    for place in rng.integers(0, len(data), 30):
        data[place] ^= int(rng.integers(1, 256))
    path.write_bytes(data)
    assert "npz" in check_refused(path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "s2s"}, "type 's2s' can't be expressed; it must be 'transformer'"),
        (
            {"transformer-ffn-activation": "gelu"},
            "transformer-ffn-activation 'gelu' can't be expressed; there",
        ),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg 'rnn' can't be expressed"),
        ({"transformer-tied-layers": [1, 1]}, r"transformer-tied-layers \[1, 1\] can't be expressed"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings True can't be"),
        (
            {"transformer-postprocess": "dhn"},
            "transformer-preprocess '' and transformer-postprocess 'dhn' and",
        ),
        ({"transformer-postprocess-emb": "h"}, "transformer-postprocess-emb 'h' can't be expressed; it must be 'd'"),
        ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask 'alibi' can't be expressed"),
        ({"transformer-decoder-dim-ffn": 8}, "transformer-decoder-dim-ffn 8 can't be expressed; it must be 0 or 24"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth 3 can't be expressed"),
        ({"dim-vocabs": [30]}, "it is not the model of a Marian: ValueError"),
        ({"dim-vocabs": None}, "it is not the model of a Marian: TypeError"),
        ({"dim-emb": "16"}, "d_model must be int, got '16'"),
        ({"enc-depth": 0}, "encoder_layers must be at least 1, got 0"),
        ({"tied-embeddings": "yes"}, "tied-embeddings 'yes' can't be expressed"),
        ({"tied-embeddings-all": True}, "dim-vocabs 30 and 26 must be alike"),
        ({"transformer-preprocess": 3}, "transformer-preprocess must be letters, got 3"),
    ],
)
def test_options_that_nothing_expresses_are_refused_by_name(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "marian", PLAIN | change, weights_of(PLAIN))
    with pytest.raises(ConfigError, match=rf"model\.npz: {message}"):
        config_of(folder)


WRONG: list[Any] = [None, True, -1, 0, 3, 1.5, 10**13, "", "x", [], [1], ["x"], {}, {"a": [1]}]


def test_a_wrong_value_of_any_option_is_refused_or_read(tmp_path: Path) -> None:
    weights = {"Wemb": np.zeros((2, 2), np.float32)}
    refused = []
    for name, wrong in itertools.product(PLAIN, WRONG):
        folder = save(tmp_path / "marian", PLAIN | {name: wrong}, weights)
        try:
            config_of(folder)
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > len(PLAIN) * len(WRONG) / 2
    assert not any("\n" in each for each in refused)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"- 1",
        b"a: &x 1\nb: *x",
        b"a: 1\na: 2",
        b"!!python/object/apply:os.system ['true']",
        b"a: [" + b"[" * 4000,
        b"\xff\xfe",
        b"a: !!timestamp 9999-99-99",
        b"? [a]\n: 1",
        b"a: " + b"9" * 5000,
        b"dim-vocabs: {}",
    ],
)
def test_options_that_are_no_options_are_refused(text: bytes, tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **{OPTIONS: np.frombuffer(text or b"\0", np.uint8)})
    check_refused(tmp_path)


def test_files_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    assert "a.npz holds no special:model.yml" in check_refused(tmp_path)
    save(tmp_path, PLAIN, weights_of(PLAIN), "model.npz")
    load_checkpoint(str(tmp_path))  # beside an optimizer's file, say
    save(tmp_path, PLAIN, weights_of(PLAIN), "model.iter1000.npz")
    assert "holds 2 models (model.iter1000.npz, model.npz); keep the one" in check_refused(tmp_path)


def test_python_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **{OPTIONS: np.array([{"a": 1}], object)})
    assert "holds Python objects, which may be code" in check_refused(tmp_path)


def test_an_array_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "marian", PLAIN, weights_of(PLAIN))
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9999), }"
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("more.npy", header.ljust(127) + b"\n")
    assert "'more.npy' has 0 bytes, expected 3999" in check_refused(folder)
