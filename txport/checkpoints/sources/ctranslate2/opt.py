"""OPT with a separate embedding size or with post-norm layers; OPT-350m has both."""

from __future__ import annotations

from pathlib import Path

from txport.checkpoints.family import Published
from txport.checkpoints.sources.ctranslate2.layers import Parts, require_alike, require_plain, require_whole_width
from txport.checkpoints.sources.ctranslate2.tensors import ZEROS, Known
from txport.checkpoints.sources.ctranslate2.vocabulary import read_vocabulary
from txport.checkpoints.sources.trainers import id_of
from txport.errors import ConfigError, quoted
from txport.models.rules import Rename, Rule

UNUSED = 2  # rows at the start of OPT's position table, which CTranslate2 leaves out
POSITIONS = "decoder/position_encodings/encodings"
RULES: tuple[Rule, ...] = (
    Rename(r"^decoder/project_in/weight$", "target_embedding.widen.weight"),
    Rename(r"^decoder/project_out/weight$", "embedding_out.weight"),
    ZEROS,
)


def is_opt(parts: Parts) -> bool:
    """Return whether there are projections between two widths, or post-norm layers."""
    return parts.has("decoder/project_in/weight") or not parts.number("decoder/pre_norm", 1)


def opt(parts: Parts, config: Published, folder: Path) -> Known:
    """Return the model as `opt`; raise `ConfigError` for unsupported features."""
    table = parts.shape("decoder/embeddings/weight")
    has_maps = parts.has("decoder/project_in/weight")
    if has_maps != parts.has("decoder/project_out/weight"):
        raise ConfigError("decoder/project_in and decoder/project_out are only supported together")
    width = parts.shape("decoder/layer_0/self_attention/linear_0/weight")[1]
    stack = parts.stack("decoder", width=width)
    rows = read_vocabulary(folder, "")
    parts.require("decoder/start_from_zero_embedding", 0)
    require_plain(stack, "embedding_norm", "is_scaled")
    require_whole_width(stack)
    require_alike("norm and final_norm of an OPT", (stack.norm, stack.final_norm), (stack.norm, stack.norm == "pre"))
    if stack.activation != "relu" or not stack.positions:
        raise ConfigError(f"an OPT needs the activation 'relu' and position embeddings, got {quoted(stack.activation)}")
    if not parts.are_one("decoder/embeddings/weight", "decoder/projection/weight") or parts.has(
        "decoder/projection/bias"
    ):
        raise ConfigError("the output projection of an OPT must be its embedding, without a bias")
    end = id_of(rows, config.get("eos_token"), "eos_token")
    values = {
        "vocab_size": stack.vocabulary,
        "d_model": width,
        "embedding_width": table[1],
        "heads": stack.heads,
        "decoder_layers": stack.layers,
        "feed_forward": stack.inner,
        "max_length": stack.positions,
        "norm": stack.norm,
        "pad_id": rows.get("<pad>", end),
        "bos_id": id_of(rows, config.get("bos_token"), "bos_token"),
        "eos_id": end,
    }
    return Known("opt", values, (stack.vocabulary,) * 2, RULES, led={POSITIONS: UNUSED})
