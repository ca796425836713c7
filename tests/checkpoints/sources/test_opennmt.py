"""OpenNMT-py's `.pt`: what is loaded computes what OpenNMT-py does."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from tests.checkpoints.sources.plain import (
    Drawn,
    Named,
    check_logits,
    check_refused,
    check_wrong_values,
    damage,
    interleaved,
    tensor2tensor,
)
from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.errors import CheckpointError, ConfigError

SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
WORDS = [*SPECIAL, *(f"w{number}" for number in range(20))]
PLAIN: dict[str, Any] = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "model_task": "seq2seq",
    "model_type": "text",
    "enc_layers": 2,
    "dec_layers": 1,
    "heads": 2,
    "hidden_size": 16,
    "enc_hid_size": 16,
    "dec_hid_size": 16,
    "transformer_ff": 24,
    "pos_ffn_activation_fn": "relu",
    "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved",
    "max_relative_positions": 0,
    "share_embeddings": False,
    "share_decoder_embeddings": True,
    "self_attn_type": "scaled-dot",
    "layer_norm": "standard",
    "norm_eps": 1e-6,
    "add_qkvbias": False,
    "add_ffnbias": True,
    "num_kv": 0,
    "parallel_residual": False,
    "copy_attn": False,
    "generator_function": "softmax",
    "lora_layers": [],
    "src_vocab": "run/vocab.src",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one vocabulary, biases": {"share_embeddings": True, "add_qkvbias": True},
    "nothing tied, gelu": {"share_decoder_embeddings": False, "pos_ffn_activation_fn": "gelu", "norm_eps": 1e-5},
    "positions in halves, no biases": {"position_encoding_type": "SinusoidalConcat", "add_ffnbias": False},
}


def weights_of(options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of the model, and of the generator."""
    drawn = Drawn()
    found = drawn.found
    for side, stack in (("encoder", "transformer"), ("decoder", "transformer_layers")):
        drawn.add(f"{side}.embeddings.make_embedding.emb_luts.0.weight", 22 if side == "encoder" else 24, 16)
        table = positions(options, 5000).float()
        found[f"{side}.embeddings.make_embedding.pe.pe"] = table[:, None]
        for number in range(options["enc_layers" if side == "encoder" else "dec_layers"]):
            scope = f"{side}.{stack}.{number}"
            for kind in ("self_attn", "context_attn")[: 1 + (side == "decoder")]:
                for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                    drawn.linear(f"{scope}.{kind}.{part}", 16, 16, bias=options["add_qkvbias"])
            for norm in ["layer_norm"] if side == "encoder" else ["layer_norm_1", "layer_norm_2"]:
                drawn.norm(f"{scope}.{norm}")
            drawn.linear(f"{scope}.feed_forward.w_1", 24, 16, bias=options["add_ffnbias"])
            drawn.linear(f"{scope}.feed_forward.w_2", 16, 24, bias=options["add_ffnbias"])
            drawn.norm(f"{scope}.feed_forward.layer_norm")
        drawn.norm(f"{side}.layer_norm")
    target = "decoder.embeddings.make_embedding.emb_luts.0.weight"
    if options["share_embeddings"]:
        found[target.replace("decoder", "encoder")] = found[target]
    drawn.linear("generator", 24, 16)
    generator = {name: found.pop(f"generator.{name}") for name in ("weight", "bias")}
    if options["share_decoder_embeddings"]:
        generator["weight"] = found[target]
    return found, generator


def positions(options: dict[str, Any], length: int) -> Tensor:
    concat = options["position_encoding_type"] == "SinusoidalConcat"
    return tensor2tensor(length, 16) if concat else interleaved(length, 16)


def save(folder: Path, options: Any, weights: tuple[dict[str, Tensor], dict[str, Tensor]], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    rows = {"src": WORDS if options.get("share_embeddings") else WORDS[:22], "tgt": WORDS}
    vocabularies = {**rows, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    values = {"model": weights[0], "generator": weights[1], "opt": Namespace(**options), "vocab": vocabularies}
    torch.save({**values, "optim": {"training_step": 3}, **more}, folder / "model_step_10.pt")
    return folder


class OpenNMT(Named):
    """OpenNMT-py's own computation, by the names of its modules."""

    def __init__(self, options: dict[str, Any], weights: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
        generator = {f"generator.{name}": each for name, each in weights[1].items()}
        super().__init__({**weights[0], **generator}, 2, options["norm_eps"], first=True)
        self.options = options

    def stack(self, ids: Tensor, side: str, over: Tensor | None) -> Tensor:
        names = ("transformer", "enc_layers") if side == "encoder" else ("transformer_layers", "dec_layers")
        table = self.weights[f"{side}.embeddings.make_embedding.emb_luts.0.weight"]
        x = table[ids] * 4 + positions(self.options, ids.shape[1])
        for number in range(self.options[names[1]]):
            scope = f"{side}.{names[0]}.{number}"
            first = "layer_norm" if over is None else "layer_norm_1"
            for kind, keys, norm in (("self_attn", None, first), ("context_attn", over, "layer_norm_2")):
                if kind == "self_attn" or over is not None:
                    parts = ("linear_query", "linear_keys", "linear_values", "final_linear")
                    query, key, value, out = (f"{scope}.{kind}.{part}" for part in parts)
                    is_causal = side == "decoder" and keys is None
                    attend = self.attend((query, key, value, out), keys, is_causal=is_causal)
                    x = self.add(x, f"{scope}.{norm}", attend)
            scope = f"{scope}.feed_forward"
            function = {"relu": F.relu, "gelu": F.gelu}[self.options["pos_ffn_activation_fn"]]
            x = self.add(x, f"{scope}.layer_norm", self.feed_forward(f"{scope}.w_1", f"{scope}.w_2", function))
        return self.norm(f"{side}.layer_norm")(x)

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        return self.linear("generator")(self.stack(target, "decoder", self.stack(source, "encoder", None)))


def test_a_folder_of_eole_is_told_where_to_go(tmp_path: Path) -> None:
    values = {"model": {"architecture": "transformer", "encoder": {"layers": 6}}, "transforms": ["sentencepiece"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert "config.json is of Eole, whose models can't be read; convert it with CTranslate2" in check_refused(tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_loaded_computes_what_opennmt_does(name: str, tmp_path: Path) -> None:
    options = PLAIN | VARIANTS[name]
    weights = weights_of(options)
    folder = save(tmp_path / "opennmt", options, weights)
    check_logits(folder, OpenNMT(options, weights).logits, vocabulary=22)
    writes = load_checkpoint(str(folder)).facts.writes
    assert (writes.pad, writes.start, writes.ends) == (1, 2, (3,))


def test_weights_may_lie_in_safetensors_beside_the_options(tmp_path: Path) -> None:
    weights = weights_of(PLAIN)
    folder = save(tmp_path / "opennmt", PLAIN, weights)
    values = torch.load(folder / "model_step_10.pt", weights_only=False)
    del values["model"], values["generator"]
    torch.save(values, folder / "model_step_10.pt")
    assert "holds no tensors, and model_step_10.safetensors is not beside it" in check_refused(folder)
    whole = {**weights[0], **{f"generator.{name}": each for name, each in weights[1].items()}}
    save_file({name: each.clone() for name, each in whole.items()}, folder / "model_step_10.safetensors")
    check_logits(folder, OpenNMT(PLAIN, weights).logits, vocabulary=22)


def test_names_of_old_versions_are_known(tmp_path: Path) -> None:
    model, generator = weights_of(PLAIN)
    old = {
        name.replace("norm.weight", "norm.a_2").replace("norm.bias", "norm.b_2"): each for name, each in model.items()
    }
    halves = {f"0.{name}": each for name, each in generator.items()}
    folder = save(tmp_path / "opennmt", PLAIN, (old, halves))
    check_logits(folder, OpenNMT(PLAIN, (model, generator)).logits, vocabulary=22)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    options = PLAIN | VARIANTS[str(rng.choice(sorted(VARIANTS)))] | {"enc_layers": 2, "dec_layers": 2}
    model, generator = weights_of(options)
    kept = {name: each for name, each in model.items() if name.endswith("pe.pe")}
    what, changed = damage({name: each for name, each in model.items() if name not in kept}, rng)
    if what == "missing decoder.embeddings.make_embedding.emb_luts.0.weight":
        generator = {"bias": generator["bias"]}  # which may be the same
    folder = save(tmp_path / "opennmt", options, (changed | kept, generator))
    assert check_refused(folder), what


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_type": "rnn"}, "decoder_type 'rnn' is not supported; it must be 'transformer'"),
        ({"max_relative_positions": 20}, "max_relative_positions 20 is not supported; it must be 0"),
        ({"position_encoding": False}, "position_encoding False is not supported"),
        ({"pos_ffn_activation_fn": "silu"}, "pos_ffn_activation_fn 'silu' is not supported"),
        ({"layer_norm": "rms"}, "layer_norm 'rms' is not supported"),
        ({"copy_attn": True}, "copy_attn True is not supported"),
        ({"num_kv": 1}, "num_kv 1 is not supported; it must be 0 or 2"),
        ({"hidden_size": 32}, "hidden_size 32 differs from the width 16 of the embeddings"),
        ({"enc_layers": None}, "encoder_layers must be int, got None"),
        ({"lora_layers": ["linear_values"]}, r"lora_layers \['linear_values'\] is not supported"),
    ],
)
def test_options_that_nothing_expresses_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "opennmt", PLAIN | change, weights_of(PLAIN))
    with pytest.raises(ConfigError, match=rf"model_step_10\.pt: {message}"):
        config_of(folder)


def test_positions_of_another_type_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "opennmt", PLAIN | {"position_encoding_type": "SinusoidalConcat"}, weights_of(PLAIN))
    with pytest.raises(CheckpointError, match=r"'encoder.embeddings.make_embedding.pe.pe' differs from the positions"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("vocabularies", "message"),
    [
        (None, "options must be names and values"),
        ({"src": WORDS[:22]}, "vocab must have a list of tokens in tgt"),
        ({"src": WORDS[:21], "tgt": WORDS}, "vocab has 21 tokens in src, its embedding 22"),
        ({"src": WORDS[:22], "tgt": WORDS, "decoder_start_token": "<x>"}, "decoder_start_token '<x>' must be a token"),
        ({"src": WORDS[2:24], "tgt": WORDS}, "<blank> must be the same token in both vocabularies"),
        ({"src": WORDS[:22], "tgt": WORDS, "src_feats": [["a"]]}, "src_feats are not supported"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(vocabularies: Any, message: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "opennmt", PLAIN, weights_of(PLAIN), vocab=vocabularies)
    with pytest.raises(ConfigError, match=message):
        config_of(folder)


def test_a_wrong_value_of_any_option_is_refused_or_read(tmp_path: Path) -> None:
    model, generator = weights_of(PLAIN)
    weights = {name: each for name, each in model.items() if "emb_luts" in name}, generator
    wrong: list[Any] = [None, True, -1, 0, 3, 1.5, 10**13, "", "x", [], {}]
    check_wrong_values(PLAIN, wrong, lambda options: save(tmp_path / "opennmt", options, weights))
