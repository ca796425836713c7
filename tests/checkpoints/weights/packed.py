"""Folders in 4 bits as GPTQ and AWQ save them, with seeded numbers, packed here by the documented layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.recorded import FAMILIES, whole
from txport.models.names import CONFIG, WEIGHTS

Array = NDArray[Any]

WIDTH, INNER, HEAD, VOCABULARY, LAYERS = 128, 256, 32, 24, 2
HEADS, KEY_HEADS = WIDTH // HEAD, 2
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
KEYS = KEY_HEADS * HEAD
MATRICES = {  # (out, in)
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KEYS, WIDTH),
    "self_attn.v_proj": (KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
FUSED = {  # of Phi-3
    "self_attn.qkv_proj": (WIDTH + 2 * KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_up_proj": (2 * INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
AWQ_OUTPUTS = [0, 2, 4, 6, 1, 3, 5, 7]


def write_folder(
    folder: Path,
    method: str = "gptq",
    group: int = 32,
    *,
    family: str = "llama",
    symmetric: bool = False,
    change: Callable[[dict[str, Array]], object] = lambda tensors: None,
    **config: Any,
) -> dict[str, Array]:
    """Write a folder; return its matrices in float32 by their names without what follows the layer's."""
    rng = np.random.default_rng(group)
    tensors = {
        "model.embed_tokens.weight": rng.standard_normal((VOCABULARY, WIDTH)),
        "lm_head.weight": rng.standard_normal((VOCABULARY, WIDTH)) / 4,
        "model.norm.weight": 1 + rng.random(WIDTH),
    }
    truth = {}
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        tensors |= {
            f"{place}{norm}.weight": 1 + rng.random(WIDTH) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for name, (out, inputs) in (FUSED if family == "phi3" else MATRICES).items():
            codes = rng.integers(0, 16, (out, inputs))
            zeros = rng.integers(1, 16, (out, inputs // group))
            zeros = np.full_like(zeros, 8) if symmetric else zeros
            scales = ((0.5 + rng.random(zeros.shape)) / 8 / np.sqrt(inputs)).astype(np.float16)
            truth[place + name] = (codes - np.repeat(zeros, group, 1)) * np.repeat(scales, group, 1).astype(np.float64)
            tensors |= {f"{place}{name}.{kind}": each for kind, each in pack(method, codes, zeros, scales, **config)}
    tensors = {name: each.astype(np.float32) if each.dtype == np.float64 else each for name, each in tensors.items()}
    change(tensors)
    folder.mkdir()
    save_file({name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in tensors.items()}, folder / WEIGHTS)
    described = {"quant_method": method, "bits": 4, "group_size": group}
    described |= {"desc_act": False, "sym": symmetric} if method == "gptq" else {"zero_point": True, "version": "gemm"}
    values = json.loads((FAMILIES / family / CONFIG).read_text()) | SIZES
    (folder / CONFIG).write_text(json.dumps(values | {"quantization_config": described | config}))
    return {name: each.astype(np.float32) for name, each in truth.items()}


def write_mxfp4(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None
) -> dict[str, Array]:
    """Write a gpt-oss with experts in MXFP4; return these by their names: (experts, in, out)."""
    tensors = load_file(whole("transformers-5/gpt_oss", folder) / WEIGHTS)
    rng = np.random.default_rng(3)
    numbers = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    truth = {}
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, out = tensors.pop(name).shape
        codes = rng.integers(0, 16, (count, out, inputs // 32, 32), np.uint8)
        powers = rng.integers(122, 127, codes.shape[:3], np.uint8)
        values = np.where(codes < 8, 1, -1) * numbers[codes % 8] * 2.0 ** (powers[..., None].astype(int) - 127)
        truth[name] = values.reshape(count, out, inputs).transpose(0, 2, 1)
        tensors[f"{name}_blocks"] = torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4)
        tensors[f"{name}_scales"] = torch.from_numpy(powers)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    values = json.loads((folder / CONFIG).read_text())
    described = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / CONFIG).write_text(json.dumps(values | {"quantization_config": described}))
    return truth


def pack(method: str, codes: Array, zeros: Array, scales: Array, **config: Any) -> list[tuple[str, Array]]:
    """Return the tensors of a matrix with codes (out, in), zero points and scales (out, groups)."""
    if method == "awq":
        return [
            ("qweight", words(codes.T, AWQ_OUTPUTS)),
            ("qzeros", words(zeros.T, AWQ_OUTPUTS)),
            ("scales", scales.T),
        ]
    older = config.get("checkpoint_format", "gptq") == "gptq"
    return [
        ("qweight", words(codes, range(8)).T),
        ("qzeros", words(zeros.T - int(older), range(8))),
        ("scales", scales.T),
        ("g_idx", np.arange(codes.shape[1], dtype=np.int32) // (codes.shape[1] // zeros.shape[1])),
    ]


def words(numbers: Array, order: Sequence[int]) -> Array:
    """Return numbers of 4 bits in int32, eight of the last axis in each: number `order[j]` is in bits 4 j."""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32)
    found = np.zeros(eights.shape[:-1], np.uint32)
    for place, number in enumerate(order):
        found |= eights[..., number] << np.uint32(4 * place)
    return found.view(np.int32)


OURS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.inner",
    "mlp.down_proj": "feed_forward.outer",
}


def by_our_names(truth: dict[str, Array]) -> dict[str, Array]:
    """Return the matrices by txport's names; the fused ones of Phi-3 are split."""
    found = {}
    for name, matrix in truth.items():
        place = re.sub(r"^model\.layers\.(\d+)\..*", r"decoder.\1.", name)
        what = re.sub(r"^model\.layers\.\d+\.", "", name)
        if what.endswith("qkv_proj"):
            parts = dict(zip(("q", "k", "v"), np.split(matrix, [WIDTH, WIDTH + KEYS]), strict=True))
            found |= {place + OURS[f"self_attn.{part}_proj"] + ".weight": each for part, each in parts.items()}
        elif what.endswith("gate_up_proj"):
            gate, up = np.split(matrix, 2)
            found |= {f"{place}feed_forward.gate.weight": gate, f"{place}feed_forward.inner.weight": up}
        else:
            found[f"{place}{OURS[what]}.weight"] = matrix
    return found
