"""Ten ways in which others write the tensors of one Transformer: names, order, layout, what is fused or stacked.

Each takes the tensors of a model of ours by name, and gives those of the foreign file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Table = Sequence[tuple[str, str]]
HEADS = 2
# A config as another program writes it, beside the weights: what no tensor tells.
HYPERPARAMETERS = {
    "num_heads": HEADS,
    "activation_function": "relu",
    "layer_norm_eps": 1e-5,
    "scale_embedding": True,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def renamed(tensors: Mapping[str, Tensor], table: Table) -> Tensors:
    """Every name through every replacement in turn."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        for pattern, to in table:
            name = re.sub(pattern, to, name)
        found[name] = tensor.clone()
    return found


def fuse(tensors: Tensors, pattern: str, parts: Sequence[str], to: str, groups: int = 1) -> None:
    """Put parts together in place: of each group of rows a share of each part. `{}` in the pattern is the part."""
    first = re.compile(pattern.replace("{}", parts[0]))
    for name in [name for name in tensors if first.search(name)]:
        names = [first.sub(lambda found, part=part: found[0].replace(parts[0], part), name) for part in parts]
        rows = [tensors.pop(each).unflatten(0, (groups, -1)) for each in names]
        tensors[first.sub(lambda found: found[0].replace(parts[0], to), name)] = torch.cat(rows, 1).flatten(0, 1)


PLAIN: Table = [
    (r"^source_embedding\.tokens", "embed_tokens"),
    (r"^(encoder|decoder)\.(\d+)\.", r"\1.layers.\2."),
    (r"^(encoder|decoder)_norm", r"\1.layer_norm"),
    (r"cross_attention_residual\.norm", "encoder_attn_layer_norm"),
    (r"feed_forward_residual\.norm", "final_layer_norm"),
    (r"attention_residual\.norm", "self_attn_layer_norm"),
    (r"cross_attention\.", "encoder_attn."),
    (r"\.attention\.", ".self_attn."),
    (r"query", "q_proj"), (r"key", "k_proj"), (r"value", "v_proj"), (r"output", "out_proj"),
    (r"feed_forward\.inner", "fc1"),
    (r"feed_forward\.outer", "fc2"),
]  # fmt: skip
TORCH: Table = [
    (r"^source_embedding\.tokens", "embedding"),
    (r"^(encoder|decoder)\.(\d+)\.", r"transformer.\1.layers.\2."),
    (r"^(encoder|decoder)_norm", r"transformer.\1.norm"),
    (r"(encoder.*)feed_forward_residual\.norm", r"\1norm2"),
    (r"(decoder.*)feed_forward_residual\.norm", r"\1norm3"),
    (r"cross_attention_residual\.norm", "norm2"),
    (r"attention_residual\.norm", "norm1"),
    (r"cross_attention\.", "multihead_attn."),
    (r"\.attention\.", ".self_attn."),
    (r"output", "out_proj"),
    (r"feed_forward\.inner", "linear1"),
    (r"feed_forward\.outer", "linear2"),
]
SHORT: Table = [
    (r"^source_embedding\.tokens\.weight", "wte"),
    (r"^encoder\.(\d+)\.", r"enc/h\1/"),
    (r"^decoder\.(\d+)\.", r"dec/h\1/"),
    (r"^encoder_norm\.", "enc/ln_f/"),
    (r"^decoder_norm\.", "dec/ln_f/"),
    (r"(enc.*)feed_forward_residual\.norm\.", r"\1ln_2/"),
    (r"(dec.*)feed_forward_residual\.norm\.", r"\1ln_3/"),
    (r"cross_attention_residual\.norm\.", "ln_2/"),
    (r"attention_residual\.norm\.", "ln_1/"),
    (r"(ln_\w)/weight", r"\1/gamma"), (r"(ln_\w)/bias", r"\1/beta"),
    (r"cross_attention\.(\w)\w+\.", r"xattn/\1/"),
    (r"attention\.(\w)\w+\.", r"attn/\1/"),
    (r"feed_forward\.inner\.", "mlp/up/"),
    (r"feed_forward\.outer\.", "mlp/down/"),
    (r"weight$", "w"), (r"bias$", "b"),
]  # fmt: skip
NESTED: Table = [
    (r"^source_embedding\.tokens", "net.stem.token_emb.emb"),
    (r"^(encoder|decoder)\.(\d+)\.", r"net.\1.attn_layers.blocks.\2."),
    (r"^(encoder|decoder)_norm", r"net.\1.attn_layers.final_norm"),
    (r"cross_attention_residual\.norm", "sub.cross.norm"),
    (r"feed_forward_residual\.norm", "sub.ff.norm"),
    (r"attention_residual\.norm", "sub.self.norm"),
    (r"cross_attention\.", "sub.cross.fn.attn."),
    (r"\.attention\.", ".sub.self.fn.attn."),
    (r"query", "to_q"), (r"key", "to_k"), (r"value", "to_v"), (r"output", "to_out.0"),
    (r"feed_forward\.inner", "sub.ff.fn.net.0"),
    (r"feed_forward\.outer", "sub.ff.fn.net.3"),
]  # fmt: skip
GLUED: Table = [
    (r"^source_embedding\.tokens\.weight", "shared/embedding"),
    (r"^encoder\.(\d+)\.", r"enc-\1/"),
    (r"^decoder\.(\d+)\.", r"dec-\1/"),
    (r"^(enc|dec)oder_norm\.", r"\1/final_ln/"),
    (r"cross_attention_residual\.norm\.", "ln_cross/"),
    (r"feed_forward_residual\.norm\.", "ln_ffn/"),
    (r"attention_residual\.norm\.", "ln_attn/"),
    (r"cross_attention\.", "cross_attention/"),
    (r"attention\.", "self_attention/"), (r"cross_self", "cross"),
    (r"(query|key|value|output)\.", r"\1/"),
    (r"feed_forward\.inner\.", "mlp/wi/"),
    (r"feed_forward\.outer\.", "mlp/wo/"),
]  # fmt: skip


def plain(tensors: Tensors) -> Tensors:
    """1: other names."""
    return renamed(tensors, PLAIN)


def fused_blocks(tensors: Tensors) -> Tensors:
    """2: queries, keys and values in one matrix, one after the other, as `torch.nn.MultiheadAttention` has them."""
    found = renamed(tensors, TORCH)
    for kind in ("weight", "bias"):
        fuse(found, rf"\.{{}}\.{kind}$", ("query", "key", "value"), "in_proj")
    return {name.replace("in_proj.", "in_proj_"): tensor for name, tensor in found.items()}


def transposed(tensors: Tensors) -> Tensors:
    """3: all matrices of layers lie as (in, out)."""
    found = renamed(tensors, SHORT)
    return {name: each.t() if each.dim() == 2 and "/h" in name else each for name, each in found.items()}


def fused_by_head(tensors: Tensors) -> Tensors:
    """4: of each head its query, its key, its value."""
    found = renamed(tensors, PLAIN)
    for kind in ("weight", "bias"):
        fuse(found, rf"self_attn\.{{}}\.{kind}$", ("q_proj", "k_proj", "v_proj"), "query_key_value", HEADS)
    return found


def fused_cross(tensors: Tensors) -> Tensors:
    """5: keys and values of the attention over the source in one matrix."""
    found = renamed(tensors, NESTED)
    for kind in ("weight", "bias"):
        fuse(found, rf"cross\.fn\.attn\.{{}}\.{kind}$", ("to_k", "to_v"), "to_kv")
    return found


def nested(tensors: Tensors) -> Tensors:
    """6: modules in modules, and the parts of layers in another order."""
    return dict(reversed(renamed(tensors, NESTED).items()))


def gamma_and_beta(tensors: Tensors) -> Tensors:
    """7: numbered norms with gamma and beta."""
    return renamed(tensors, SHORT)


def glued(tensors: Tensors) -> Tensors:
    """8: the numbers of layers are part of a word."""
    return renamed(tensors, GLUED)


def stacked(tensors: Tensors) -> Tensors:
    """9: the same tensor of all layers in one."""
    found = renamed(tensors, PLAIN)
    for name in [name for name in found if ".layers.0." in name]:
        layers = [found.pop(name.replace(".0.", f".{at}.", 1)) for at in range(2)]
        found[name.replace(".layers.0.", ".layers.", 1)] = torch.stack(layers)
    return found


def unnamed(tensors: Tensors) -> Tensors:
    """10: square matrices of attention with names that say nothing."""
    letters = [(r"q_proj", "a"), (r"k_proj", "b"), (r"v_proj", "c"), (r"out_proj", "d")]
    return renamed(tensors, [*PLAIN, *letters])


LAYOUTS: tuple[Callable[[Tensors], Tensors], ...] = (
    plain, fused_blocks, transposed, fused_by_head, fused_cross, nested, gamma_and_beta, glued, stacked, unnamed,
)  # fmt: skip
