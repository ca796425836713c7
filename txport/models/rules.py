"""Rules that convert the tensors of a checkpoint to those of a model: names, layouts, splits, joins and ties."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rename:
    """Replaces each match of a regular expression in a name, like `re.sub`."""

    pattern: str
    to: str


@dataclass(frozen=True)
class Drop:
    """Drops tensors whose name begins with this regular expression: the model does not use them, or computes them.

    `computed` replaces the match by the name of a table that the model computes; the tensor must equal it.
    """

    pattern: str
    computed: str = ""


@dataclass(frozen=True)
class Transpose:
    """Transposes matrices with this pattern in their name: (in, out) in the file, (out, in) in the model."""

    pattern: str


@dataclass(frozen=True)
class Split:
    """Splits a tensor with this pattern in its name into several along an axis, each with the model's size.

    `to` replaces the match, once for each of them. They are stored one after the other, or, with `groups`, each group
    holds a share of each: with as many groups as heads, rows are stored as (heads, 3, size).
    """

    pattern: str
    to: tuple[str, ...]
    axis: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Unstack:
    """Unstacks a tensor with this pattern in its name: its first axis is the layer.

    `to` replaces the match; in it, `{}` is the number of the layer.
    """

    pattern: str
    to: str


@dataclass(frozen=True)
class Concat:
    """Joins tensors along an axis, in the order of `patterns`, if their names differ only in the matches.

    `to` replaces the match.
    """

    patterns: tuple[str, ...]
    to: str
    axis: int = 0


@dataclass(frozen=True)
class Permute:
    """Permutes an axis of a tensor with this pattern in its name: viewed as `view`, in the order `order`.

    One size in `view` may be -1. `(heads, -1, 2)` and `(0, 2, 1)` convert interleaved rotary pairs to halves.
    """

    pattern: str
    view: tuple[int, ...]
    order: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True)
class Squeeze:
    """Removes the axes of size 1 from a tensor with this pattern in its name."""

    pattern: str


@dataclass(frozen=True)
class Shift:
    """Adds a number to a tensor with this pattern in its name, for norms that multiply by 1 + weight."""

    pattern: str
    by: float


@dataclass(frozen=True)
class Multiply:
    """Multiplies a tensor with this pattern in its name by a number, such as a scale that the module applies."""

    pattern: str
    by: float


@dataclass(frozen=True)
class Reshape:
    """Gives a tensor with this pattern in its name another shape, in the order of its numbers; one size may be -1."""

    pattern: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Pad:
    """Adds rows of one number after those of a tensor with this pattern in its name, up to the number `rows`."""

    pattern: str
    rows: int
    value: float = 0.0


@dataclass(frozen=True)
class Take:
    """Takes one row of a matrix with this pattern in its name; does nothing if the tensor has no such row."""

    pattern: str
    row: int = 0


@dataclass(frozen=True)
class Spare:
    """Allows tensors whose name begins with this to be unused if the model does not have them: an unused head."""

    pattern: str


@dataclass(frozen=True)
class Constant:
    """Fills model tensors whose full name matches with this value if the checkpoint does not have them."""

    pattern: str
    value: float = 0.0


@dataclass(frozen=True)
class Tie:
    """Makes the model's tensor `name` like its tensor `of` if the checkpoint has only that."""

    name: str
    of: str


@dataclass(frozen=True)
class Settle:
    """From here on, tensors that have a name of the model keep it. Without this rule, they keep it from the start."""


Rule = (
    Rename
    | Drop
    | Transpose
    | Split
    | Unstack
    | Concat
    | Permute
    | Squeeze
    | Shift
    | Multiply
    | Reshape
    | Pad
    | Take
    | Spare
    | Constant
    | Tie
    | Settle
)


# ------------------------------------------------------------------------------------------------ fairseq's names

# Several trainers share them, and transformers adopted them for many models.
FAIRSEQ_SINUSOIDS: tuple[Rule, ...] = (
    Drop(r"(model\.)?encoder\.embed_positions\.weights?$", "source_embedding.positions"),
    Drop(r"(model\.)?decoder\.embed_positions\.weights?$", "target_embedding.positions"),
)
FAIRSEQ_LAYERS: tuple[Rule, ...] = (
    Rename(r"^(encoder|decoder)\.layer_norm\.", r"\1_norm."),
    Rename(r"^(encoder|decoder)\.layers\.", r"\1."),
    Rename(r"\.self_attn\.", ".attention."),
    Rename(r"\.encoder_attn\.", ".cross_attention."),
    Rename(r"attention\.q_proj\.", "attention.query."),
    Rename(r"attention\.k_proj\.", "attention.key."),
    Rename(r"attention\.v_proj\.", "attention.value."),
    Rename(r"attention\.out_proj\.", "attention.output."),
    Rename(r"\.fc1\.", ".feed_forward.inner."),
    Rename(r"\.fc2\.", ".feed_forward.outer."),
    Rename(r"\.self_attn_layer_norm\.", ".attention_residual.norm."),
    Rename(r"\.encoder_attn_layer_norm\.", ".cross_attention_residual.norm."),
    Rename(r"\.final_layer_norm\.", ".feed_forward_residual.norm."),
)
