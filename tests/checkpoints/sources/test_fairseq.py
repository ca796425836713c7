"""fairseq's `.pt`: what is loaded computes what fairseq does."""

from __future__ import annotations

import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.checkpoints.sources.plain import (
    Drawn,
    Named,
    check_logits,
    check_refused,
    check_wrong_values,
    damage,
    tensor2tensor,
)
from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.errors import CheckpointError, ConfigError

MULTI = "translation_multi_simple_epoch"
WORDS = [f"w{number}" for number in range(22)]  # behind the four that each dictionary begins with
PLAIN: dict[str, Any] = {
    "arch": "transformer_iwslt_de_en",
    "task": "translation",
    "source_lang": "de",
    "target_lang": "en",
    "encoder_embed_dim": 16,
    "decoder_embed_dim": 16,
    "decoder_input_dim": 16,
    "decoder_output_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "share_all_embeddings": False,
    "share_decoder_input_output_embed": True,
    "no_scale_embedding": False,
    "no_token_positional_embeddings": False,
    "layernorm_embedding": False,
    "activation_fn": "relu",
    "adaptive_softmax_cutoff": None,
    "max_source_positions": 24,
    "max_target_positions": 20,
    "dropout": 0.3,
}
BEFORE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre, all tied": {**BEFORE, "share_all_embeddings": True, "share_decoder_input_output_embed": True},
    "learned, norms of embeddings, nothing tied": {
        **LEARNED,
        "layernorm_embedding": True,
        "share_decoder_input_output_embed": False,
        "no_scale_embedding": True,
        "activation_fn": "gelu",
    },
    "swish, pre, learned": {**BEFORE, **LEARNED, "activation_fn": "swish"},
    "tanh": {"activation_fn": "gelu_accurate"},
}
FUNCTIONS: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "gelu_accurate": lambda x: F.gelu(x, approximate="tanh"),
}


def weights_of(options: dict[str, Any]) -> dict[str, Tensor]:
    drawn = Drawn()
    found = drawn.found
    for side, words in (("encoder", 26), ("decoder", 26 if options["share_all_embeddings"] else 24)):
        found[f"{side}.version"] = torch.tensor([3.0])
        drawn.add(f"{side}.embed_tokens.weight", words, 16)
        if options[f"{side}_learned_pos"]:
            longest = options["max_source_positions" if side == "encoder" else "max_target_positions"]
            drawn.add(f"{side}.embed_positions.weight", longest + 2, 16)
        else:
            found[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        if options["layernorm_embedding"]:
            drawn.norm(f"{side}.layernorm_embedding")
        for number in range(options[f"{side}_layers"]):
            scope = f"{side}.layers.{number}"
            for kind in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in "kvq":
                    drawn.linear(f"{scope}.{kind}.{part}_proj", 16, 16)
                drawn.linear(f"{scope}.{kind}.out_proj", 16, 16)
                drawn.norm(f"{scope}.{kind}_layer_norm")
            drawn.linear(f"{scope}.fc1", 24, 16)
            drawn.linear(f"{scope}.fc2", 16, 24)
            drawn.norm(f"{scope}.final_layer_norm")
        if options[f"{side}_normalize_before"]:
            drawn.norm(f"{side}.layer_norm")
    if options["share_all_embeddings"]:
        found["decoder.embed_tokens.weight"] = found["encoder.embed_tokens.weight"]
    tied = options["share_decoder_input_output_embed"]
    drawn.add("decoder.output_projection.weight", *found["decoder.embed_tokens.weight"].shape)
    if tied:
        found["decoder.output_projection.weight"] = found["decoder.embed_tokens.weight"]
    return found


def save(folder: Path, options: Any, weights: dict[str, Tensor], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    args = Namespace(**options) if isinstance(options, dict) else options
    values = {"args": args, "model": weights, "optimizer_history": [{"num_updates": 3}], "extra_state": {"epoch": 1}}
    torch.save({**values, **more}, folder / "checkpoint_best.pt")
    for language, side in (("de", "encoder"), ("en", "decoder")):
        table = weights.get(f"{side}.embed_tokens.weight")
        words = WORDS if table is None or table.dim() != 2 else WORDS[: len(table) - 4]
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 1\n" for word in words))
    return folder


class Fairseq(Named):
    """fairseq's own computation, by the names of its modules."""

    def __init__(self, options: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().__init__(weights, 2, 1e-5, first=options["encoder_normalize_before"])
        self.options = options

    def stack(self, ids: Tensor, side: str, over: Tensor | None) -> Tensor:
        options = self.options
        function = FUNCTIONS[self.options["activation_fn"]]
        x = self.weights[f"{side}.embed_tokens.weight"][ids] * (1.0 if options["no_scale_embedding"] else 4.0)
        table = self.weights.get(f"{side}.embed_positions.weight", tensor2tensor(40, 16))
        x = x + table[2 : 2 + ids.shape[1]]
        if options["layernorm_embedding"]:
            x = self.norm(f"{side}.layernorm_embedding")(x)
        for number in range(options[f"{side}_layers"]):
            scope = f"{side}.layers.{number}"
            for kind, keys in (("self_attn", None), ("encoder_attn", over))[: 1 + (over is not None)]:
                query, key, value, out = (f"{scope}.{kind}.{part}_proj" for part in ("q", "k", "v", "out"))
                is_causal = side == "decoder" and keys is None
                attend = self.attend((query, key, value, out), keys, is_causal=is_causal)
                x = self.add(x, f"{scope}.{kind}_layer_norm", attend)
            inside = self.feed_forward(f"{scope}.fc1", f"{scope}.fc2", function)
            x = self.add(x, f"{scope}.final_layer_norm", inside)
        return self.norm(f"{side}.layer_norm")(x) if options[f"{side}_normalize_before"] else x

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        decoded = self.stack(target, "decoder", self.stack(source, "encoder", None))
        return decoded @ self.weights["decoder.output_projection.weight"].T


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_loaded_computes_what_fairseq_does(name: str, tmp_path: Path) -> None:
    options = PLAIN | VARIANTS[name]
    weights = weights_of(options)
    folder = save(tmp_path / "fairseq", options, weights)
    check_logits(folder, Fairseq(options, weights).logits, vocabulary=24)
    model = load_checkpoint(str(folder)).model
    assert model.facts.writes.start == 2
    assert model.facts.reads.with_special([7]) == [7, 2]
    assert model.facts.reads.longest == 20


def test_later_versions_have_options_in_cfg(tmp_path: Path) -> None:
    weights = weights_of(PLAIN)
    own = {name: value for name, value in PLAIN.items() if name not in ("arch", "task")}
    cfg = {"model": {**own, "_name": "transformer"}, "task": {"_name": "translation", "data": "x"}, "common": {}}
    folder = save(tmp_path / "fairseq", PLAIN, weights, args=None, cfg=cfg)
    check_logits(folder, Fairseq(PLAIN, weights).logits, vocabulary=24)
    cfg["model"] = Namespace(**PLAIN)
    check_logits(save(folder, PLAIN, weights, args=None, cfg=cfg), Fairseq(PLAIN, weights).logits, vocabulary=24)


def test_names_of_old_versions_are_known(tmp_path: Path) -> None:
    options = PLAIN | {"share_decoder_input_output_embed": False}
    weights = weights_of(options)
    old = {}
    for name, tensor in weights.items():
        for number, kind in enumerate(("self_attn", "encoder_attn", "final")):
            if "encoder.layers" in name and kind == "final":
                number = 1
            name = name.replace(f".{kind}_layer_norm.", f".layer_norms.{number}.")
        old[name.replace("output_projection.weight", "embed_out")] = tensor
    for name in [name for name in old if "_attn.q_proj." in name]:
        parts = [old.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    for name in [name for name in old if name.endswith("_float_tensor")]:
        del old[name]
        old[name.replace("_float_tensor", "weights")] = tensor2tensor(40, 16).float()
        old[name.replace("_float_tensor", "weights")][1] = 0  # padding
    check_logits(save(tmp_path / "fairseq", options, old), Fairseq(options, weights).logits, vocabulary=24)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_model_is_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    options = PLAIN | VARIANTS[str(rng.choice(sorted(VARIANTS)))]
    weights = weights_of(options)
    kept = {name: each for name, each in weights.items() if "version" in name or "_float" in name}
    if options["share_decoder_input_output_embed"]:  # which the file may lack
        del weights["decoder.output_projection.weight"]
    what, changed = damage({name: each for name, each in weights.items() if name not in kept}, rng)
    assert check_refused(save(tmp_path / "fairseq", options, changed | kept)), what


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "fconv"}, "arch 'fconv' is not supported; it must be a transformer"),
        ({"arch": "transformer_lm_gpt"}, "arch 'transformer_lm_gpt' is not supported"),
        ({"task": "translation_lm"}, "task 'translation_lm' is not supported"),
        ({"task": "translation_from_pretrained_bart"}, "task 'translation_from_pretrained_bart' is not supported"),
        ({"task": MULTI}, "encoder_langtok None of a multilingual task is not supported; it must be 'src'"),
        ({"task": MULTI, "encoder_langtok": "src", "decoder_langtok": True}, "langs None and lang_tok_style"),
        ({"activation_fn": "tanh"}, "activation_fn 'tanh' is not supported; supported: gelu, "),
        ({"decoder_embed_dim": 32}, "decoder_embed_dim 32 is not supported; it must be 16"),
        ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim 32 is not supported"),
        ({"decoder_attention_heads": 4}, "encoder_attention_heads 2 and decoder_attention_heads 4 differ"),
        ({"decoder_normalize_before": True}, "encoder_normalize_before False and decoder_normalize_before True differ"),
        ({"adaptive_softmax_cutoff": "10"}, "adaptive_softmax_cutoff '10' is not supported"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings True is not supported"),
        ({"share_all_embeddings": 3}, "share_all_embeddings 3 is not supported"),
        ({"max_source_positions": None, "max_target_positions": "x"}, "it is not a Transformer of fairseq: TypeError"),
        ({"scale_heads": True}, "scale_heads True is not supported"),
    ],
)
def test_options_that_nothing_expresses_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "fairseq", PLAIN | change, weights_of(PLAIN))
    with pytest.raises(ConfigError, match=rf"checkpoint_best\.pt: {message}"):
        config_of(folder)


WRONG: list[Any] = [None, True, -1, 0, 3, 1.5, 10**13, "", "x", [], {}, Namespace()]


def test_a_wrong_value_of_any_option_is_refused_or_read(tmp_path: Path) -> None:
    weights = {name: each for name, each in weights_of(PLAIN).items() if "embed_tokens" in name}
    check_wrong_values(PLAIN, WRONG, lambda options: save(tmp_path / "fairseq", options, weights))


class Opened:
    """What runs when it is read."""

    def __reduce__(self) -> Any:
        return (print, ("read",))


class DictConfig(dict[str, Any]):
    """A class that is not allowed."""


DictConfig.__module__ = "omegaconf.dictconfig"


def test_code_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "fairseq", PLAIN, weights_of(PLAIN), extra_state=Opened())
    assert "it holds print, which may run code" in check_refused(folder)
    assert not capsys.readouterr().out


def test_options_of_omegaconf_are_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(DictConfig.__module__)
    monkeypatch.setattr(module, "DictConfig", DictConfig, raising=False)
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, DictConfig.__module__, module)
    folder = save(tmp_path / "fairseq", PLAIN, weights_of(PLAIN), args=None, cfg=DictConfig(model=PLAIN))
    message = "it holds omegaconf.dictconfig.DictConfig, which may run code; load it with its trainer and save it with"
    assert message in check_refused(folder)


def test_values_that_are_no_models_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fairseq"
    weights = weights_of(PLAIN)
    for values, message in (
        ({"args": None}, "it has neither args nor cfg"),
        ({"args": {"task": torch.zeros(3)}}, "the option 'task' is a tensor, expected a plain value"),
        ({"args": [1]}, "options must be names and values, got 'list'"),
        ({"args": None, "cfg": {"model": 3}}, "options must be names and values, got 'int'"),
        ({"model": {}}, "holds no tensors by name where its trainer has them"),
        ({"model": {"a": 1}}, "holds 'a', which is no tensor by name"),
        ({"model": {"a": torch.eye(3).to_sparse()}}, "holds 'a', which is sparse or quantised"),
    ):
        assert message in check_refused(save(folder, PLAIN, weights, **values))
    torch.save([1], folder / "checkpoint_best.pt")
    assert "holds a list, expected a dict" in check_refused(folder)
    (folder / "checkpoint_best.pt").write_bytes(b"PK\x03\x04 no pickle")
    assert "checkpoint_best.pt is refused: " in check_refused(folder)
    save(folder, PLAIN, weights)
    (folder / "checkpoint_last.pt").write_bytes(b"")
    assert "holds 2 models (checkpoint_best.pt, checkpoint_last.pt); keep the one" in check_refused(folder)
    for path in folder.glob("*.pt"):
        path.unlink()
    assert "holds no *.pt, in which its trainer has a model" in check_refused(folder)


def test_versions_that_had_no_final_norms_are_refused_with_one(tmp_path: Path) -> None:
    weights = weights_of(PLAIN | BEFORE) | {"decoder.version": torch.tensor([2.0])}
    folder = save(tmp_path / "fairseq", PLAIN | BEFORE, weights)
    with pytest.raises(ConfigError, match=r"decoder\.version 2\.0 has no use for decoder\.layer_norm"):
        load_checkpoint(str(folder))
    del weights["decoder.layer_norm.weight"]
    with pytest.raises((ConfigError, CheckpointError), match="a final norm in only one of encoder and decoder"):
        load_checkpoint(str(save(folder, PLAIN | BEFORE, weights)))


def test_a_matrix_that_sees_one_row_many_times_is_refused(tmp_path: Path) -> None:
    weights = weights_of(PLAIN)
    weights["encoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"][:1].clone().expand(1 << 24, -1)
    message = check_refused(save(tmp_path / "fairseq", PLAIN, weights))
    assert "'encoder.embed_tokens.weight', which repeats few numbers many times" in message
