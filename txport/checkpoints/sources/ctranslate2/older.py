"""Older models of CTranslate2, with the names and the settings of the newest ones.

CTranslate2 itself converts them when it loads them (`src/models/transformer.cc`, `sequence_to_sequence.cc`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from txport.checkpoints.sources.ctranslate2.binary import Binary, Variable

CONFIG_SINCE = 6  # version of the file; settings were variables before
SPEC = "TransformerSpec"
HEADS = {"": 8, "TransformerBase": 8, "TransformerBig": 16}  # of models that do not store the number
RENAMED_SINCE, HEADS_SINCE = 2, 3  # revisions of the specification
SIDES_SINCE = {SPEC: 5, "TransformerDecoderSpec": 2}  # each side has attributes of its own since this revision
BOTH = ("num_heads", "pre_norm", "activation")
SHARED = {"encoder": (*BOTH, "embeddings_merge"), "decoder": (*BOTH, "alignment_layer", "alignment_heads")}
# parts of names in OpenNMT-tf, whose names the first revision has; each is replaced once
RENAMED = (
    ("transformer/", ""),
    (":0", ""),
    ("w_embs", "embeddings/weight"),
    ("kernel", "weight"),
    ("LayerNorm", "layer_norm"),
    ("dense", "projection"),
    ("conv1d_", "linear_"),
    ("conv1d", "linear_0"),
)
RENAMED_ENCODER = (("multi_head", "self_attention"),)
RENAMED_DECODER = (("masked_multi_head", "self_attention"), ("multi_head", "attention"))
TEXTS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
FLAGS = {"with_source_bos": 0, "with_source_eos": 0, "with_target_bos": 1, "user_decoder_start_tokens": 0}


def renewed(binary: Binary) -> tuple[Binary, dict[str, object]]:
    """Return a model as the newest version would store it, and the values of the `config.json` that it would have."""
    settings = _settings(binary) if binary.version < CONFIG_SINCE else {}
    names = {name: root for name, root in binary.names.items() if not settings or name not in {*TEXTS, *FLAGS}}
    if binary.specification in HEADS:
        heads = HEADS[binary.specification]
        binary = replace(binary, specification=SPEC)
        if binary.revision < RENAMED_SINCE:
            names = {_new_name(name): root for name, root in names.items()}
        if binary.revision < HEADS_SINCE:
            names["num_heads"] = "num_heads"
            variables = {**binary.variables, "num_heads": Variable((), torch.int8, 0)}
            binary = replace(binary, variables=variables, attributes={**binary.attributes, "num_heads": heads})
    if binary.revision < SIDES_SINCE.get(binary.specification, 0):
        sides = SHARED if binary.specification == SPEC else {"decoder": BOTH}
        own = {f"{side}/{name}": names[name] for side, shared in sides.items() for name in shared if name in names}
        left = {name: root for name, root in names.items() if not any(name in shared for shared in sides.values())}
        names = own | left
    return replace(binary, names=names), settings


def _settings(binary: Binary) -> dict[str, object]:
    """Return the special tokens of a model that has them as variables."""
    tokens: dict[str, object] = {name: binary.text(name, default) for name, default in TEXTS.items()}
    flags = {name: bool(binary.attributes.get(name, default)) for name, default in FLAGS.items()}
    start = tokens["bos_token"] if flags["with_target_bos"] else tokens["eos_token"]
    return {
        **tokens,
        "add_source_bos": flags["with_source_bos"],
        "add_source_eos": flags["with_source_eos"],
        "decoder_start_token": None if flags["user_decoder_start_tokens"] else start,
    }


def _new_name(name: str) -> str:
    """Return the name that a variable of OpenNMT-tf has since the second revision."""
    for old, new in (*RENAMED, *(RENAMED_ENCODER if "encoder" in name else RENAMED_DECODER)):
        name = name.replace(old, new, 1)
    return name
