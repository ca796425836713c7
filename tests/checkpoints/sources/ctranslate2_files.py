"""Files of CTranslate2 that tests write: changed ones, and those of older versions."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from typing import Any

import torch

from txport.checkpoints.sources.ctranslate2.binary import TYPES, Binary, read_binary


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def written(
    binary: Binary, variables: dict[str, Any], aliases: dict[str, str] | None = None, version: int = 6
) -> bytes:
    """A `model.bin` of a version with these variables, and the aliases of another."""
    if aliases is None:
        aliases = {name: root for name, root in binary.names.items() if name != root}
    named = string(binary.specification) + struct.pack("<I", binary.revision) if version >= 2 else b""
    data = struct.pack("<I", version) + named + struct.pack("<I", len(variables))
    for name, tensor in variables.items():
        raw = (
            tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else tensor[None].numpy().tobytes()
        )
        kind = (TYPES.index(tensor.dtype), len(raw)) if version >= 4 else (tensor.itemsize, tensor.numel())
        data += string(name) + struct.pack("<B", tensor.dim()) + struct.pack(f"<{tensor.dim()}I", *tensor.shape)
        data += struct.pack("<BI", *kind) + raw
    if version < 3:
        return data
    data += struct.pack("<I", len(aliases)) + b"".join(string(each) for pair in aliases.items() for each in pair)
    return data


def variables_of(path: Path) -> tuple[Binary, dict[str, Any]]:
    binary = read_binary(path)
    return binary, {name: binary._data(name) for name in binary.variables}


OLD_SPEC, OLD_HEADS = "TransformerBase", 8  # the specification of models that do not store the number of heads
OLD_NAMES = (  # what the first revision calls parts of names
    (r"^encoder(.*)/self_attention/", r"encoder\1/multi_head/"),
    (r"^decoder(.*)/attention/", r"decoder\1/multi_head/"),
    (r"^decoder(.*)/self_attention/", r"decoder\1/masked_multi_head/"),
    ("embeddings(_0)?/weight", "w_embs"),
    ("layer_norm", "LayerNorm"),
    ("projection", "dense"),
    ("linear_0", "conv1d"),
    ("linear_", "conv1d_"),
    ("/weight", "/kernel"),
    ("(.*)", r"transformer/\1:0"),
)


def old_name(name: str) -> str:
    """Return what OpenNMT-tf called a weight, and so the first revision of CTranslate2's files."""
    for pattern, old in OLD_NAMES:
        name = re.sub(pattern, old, name, count=1)
    return name


def older(folder: Path, version: int, revision: int) -> None:
    """Rewrite a model of an encoder and a decoder as an older CTranslate2 would have written it."""
    binary, variables = variables_of(folder / "model.bin")
    whole = {name: variables[root] for name, root in binary.names.items()} if version < 3 else variables
    aliases = {} if version < 3 else {name: root for name, root in binary.names.items() if name != root}
    config = json.loads((folder / "config.json").read_text())
    shared = {name: value for name, value in whole.items() if not value.dim()}
    kept = {name: value for name, value in whole.items() if name not in shared}
    shared = {name.removeprefix("encoder/"): value for name, value in shared.items() if name.startswith("encoder/")}
    alone = {name: value for name, value in shared.items() if "/" not in name and name != "scale_embeddings"}
    scaled = {f"{side}/scale_embeddings": shared["scale_embeddings"] for side in ("encoder", "decoder")}
    if revision < 3:
        del alone["num_heads"]
        binary = dataclasses.replace(binary, specification=OLD_SPEC)
    if revision < 2:
        kept = {old_name(name): value for name, value in kept.items()}
    flag = torch.tensor(1, dtype=torch.int8)
    settings = {"with_source_eos": flag * config["add_source_eos"], "with_source_bos": flag * config["add_source_bos"]}
    settings["with_target_bos"] = flag * (config["decoder_start_token"] == config["bos_token"])
    for name in ("unk_token", "bos_token", "eos_token"):
        settings[name] = torch.tensor(list(config[name].encode()), dtype=torch.int8)
    binary = dataclasses.replace(binary, revision=revision)
    (folder / "model.bin").write_bytes(written(binary, {**kept, **alone, **scaled, **settings}, aliases, version))
    (folder / "config.json").unlink()
