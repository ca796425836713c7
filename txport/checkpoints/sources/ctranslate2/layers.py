"""Sizes and layer types of a CTranslate2 model, from its variables and attributes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from txport.checkpoints.sources.ctranslate2.binary import SCALE, Binary
from txport.checkpoints.weights.steps import Shape
from txport.errors import ConfigError, quoted

ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu", 5: "tanh"}
REFUSED = re.compile(  # in names of unsupported variables
    r"relative_(position|asymmetric)|/(shared|input|post_attention|\w+_feedforward|\w+_encoder_attention)_layer_norm/"
    r"|/v_norm/|/memory_kv/|_zero$|_packed$"
)
NEUTRAL = {  # attributes without effect at these values; None: at any value
    "alibi": 0,
    "scale_outputs": 1,
    "final_logit_softcapping": 0,
    "layer_scalar": 1,
    "multi_query": 0,
    "alibi_use_positive_positions": None,
    "scale_alibi": None,
    "alignment_layer": None,
    "alignment_heads": None,
    "multi_query_attention": None,  # num_heads_kv states the same
}
LINEARS = ("self_attention/linear_0", "self_attention/linear_1", "ffn/linear_0", "ffn/linear_0_noact", "ffn/linear_1")
CROSS = ("attention/linear_0", "attention/linear_1", "attention/linear_2")
FEATURES = {  # of a stack, as errors call them
    "is_rms": "RMSNorm",
    "is_gated": "gated feed-forward",
    "head_norm": "norms of heads",
    "window": "windows",
    "positions": "a table of positions",
    "embedding_norm": "a norm of embeddings",
    "is_scaled": "scaled embeddings",
    "final_norm": "a final norm",
}


@dataclass(frozen=True)
class Stack:
    """One side of a model, from its attributes and the shapes of its weights. `window` is 0 without a window."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    inner: int
    activation: str
    norm: str
    final_norm: bool
    embedding_norm: bool
    is_rms: bool
    is_gated: bool
    is_scaled: bool
    positions: int
    window: int
    head_norm: bool


class Parts:
    """The variables of one model. Attributes that are read are removed; the rest must have no effect (`finish`)."""

    def __init__(self, binary: Binary) -> None:
        self.shapes = binary.shapes
        self.roots = binary.names
        roots = {name: root for name, root in binary.names.items() if root in binary.attributes}
        self._attributes = {
            name: binary.attributes[root] for name, root in roots.items() if name.removesuffix(SCALE) not in self.shapes
        }
        if refused := [name for name in self.roots if REFUSED.search(name)]:
            raise ConfigError(f"{quoted(refused[0])} is not supported")

    def has(self, name: str) -> bool:
        """Return whether there is a weight of this name."""
        return name in self.shapes

    def are_one(self, *names: str) -> bool:
        """Return whether these are names of one variable."""
        return len({self.roots.get(name, name) for name in names}) == 1

    def shape(self, name: str) -> Shape:
        """Return the shape of a matrix; raise `ConfigError` if it is missing."""
        found = self.shapes.get(name, ())
        if len(found) != 2 or not all(found):
            raise ConfigError(f"it must have a matrix {quoted(name)}, got the shape {found}")
        return found

    def number(self, name: str, default: float) -> float:
        """Return an attribute without removing it."""
        return self._attributes.get(name, default)

    def attribute(self, name: str, default: float) -> float:
        """Return an attribute and remove it."""
        return self._attributes.pop(name, default)

    def require(self, name: str, *allowed: float) -> None:
        """Raise `ConfigError` unless an attribute has one of these values; the first is the default."""
        if (found := self.attribute(name, allowed[0])) not in allowed:
            raise ConfigError(f"{name} {found} is not supported; it must be {' or '.join(map(str, allowed))}")

    def of_layers(self, side: str, name: str, default: float) -> float:
        """Return an attribute that all layers share; raise `ConfigError` if they differ."""
        pattern = rf"{side}/layer_(\d+)/(\w+/)?{name}"
        numbers = {each: match[1] for each in self._attributes if (match := re.fullmatch(pattern, each))}
        found = {self._attributes.pop(each) for each in numbers}
        if len(set(numbers.values())) < self.number_of_layers(side):
            found.add(default)
        if len(found) > 1:
            raise ConfigError(f"{name} differs between layers ({quoted(sorted(found))}), which is not supported")
        return found.pop()

    def number_of_layers(self, side: str) -> int:
        """Return the number of layers; raise `ConfigError` if one is missing."""
        found = {int(each[1]) for name in self.roots if (each := re.match(rf"{side}/layer_(\d{{1,6}})/", name))}
        if not found or max(found) != len(found) - 1:
            raise ConfigError(f"the layers of its {side} are {quoted(sorted(found))}")
        return len(found)

    def in_layers(self, side: str, name: str) -> bool:
        """Return whether layers have this weight; raise `ConfigError` if only some of them do."""
        has = [self.has(f"{side}/layer_{number}/{name}") for number in range(self.number_of_layers(side))]
        if any(has) and not all(has):
            raise ConfigError(f"{side}/layer_{has.index(False)}/{name} is missing, which other layers have")
        return any(has)

    def activation(self, name: str) -> str:
        """Return the name of an activation, which is stored as a number."""
        kind = self.attribute(name, 0)
        if kind not in ACTIVATIONS:
            raise ConfigError(f"{name} {kind} is not supported; it must be one of {sorted(ACTIVATIONS)}")
        return ACTIVATIONS[int(kind)]

    def stack(self, side: str, *, is_scaled: bool = True, width: int = 0) -> Stack:
        """Return the sizes and layer types of one side.

        If not `is_scaled`, attention scores are not divided by sqrt(head size). `width` is the width of the layers if
        that of the embeddings differs or there are none.
        """
        one = f"{side}/embeddings/weight"
        several = f"{side}/embeddings_0/weight"
        has_tokens = not width or self.has(one) or self.has(several)
        vocabulary, inner = self.shape(one if self.has(one) else several) if has_tokens else (0, width)
        width = width or inner
        heads = whole("num_heads", self.attribute(f"{side}/num_heads", 8))
        if heads < 1:
            raise ConfigError(f"{side}/num_heads must be at least 1, got {heads}")
        head_size = whole("head_dim", self.of_layers(side, "head_dim", width // heads))
        expected = max(head_size, 1) ** -0.5 if is_scaled else 1.0
        scale = self.of_layers(side, "queries_scale", max(head_size, 1) ** -0.5)
        if not math.isclose(scale, expected, rel_tol=1e-6):
            raise ConfigError(f"queries_scale {scale} is not supported; it must be {expected}")
        windows = (self.attribute(f"{side}/sliding_window", 0), self.of_layers(side, "sliding_window", 0))
        for name in (*LINEARS, *(CROSS if side == "decoder" else ())):
            self.in_layers(side, f"{name}/bias")
        encodings = f"{side}/position_encodings/encodings"
        return Stack(
            vocabulary=vocabulary,
            width=width,
            layers=self.number_of_layers(side),
            heads=heads,
            key_heads=whole("num_heads_kv", self.of_layers(side, "num_heads_kv", heads)),
            head_size=head_size,
            inner=self.shape(f"{side}/layer_0/ffn/linear_0/weight")[0],
            activation=self.activation(f"{side}/activation"),
            norm="pre" if self.attribute(f"{side}/pre_norm", 1) else "post",
            final_norm=self.has(f"{side}/layer_norm/gamma"),
            embedding_norm=self.has(f"{side}/layernorm_embedding/gamma"),
            is_rms=not self.in_layers(side, "ffn/layer_norm/beta"),
            is_gated=self.in_layers(side, "ffn/linear_0_noact/weight"),
            is_scaled=self._is_scaled(side, width),
            positions=self.shape(encodings)[0] if self.has(encodings) else 0,
            window=whole("sliding_window", min((each for each in windows if each), default=0)),
            head_norm=self.in_layers(side, "self_attention/q_norm/gamma"),
        )

    def _is_scaled(self, side: str, width: int) -> bool:
        """Return whether embeddings are multiplied by sqrt(d_model); stored as a flag or as the factor."""
        name = f"{side}/scale_embeddings"
        root = math.sqrt(width)
        value = self.attribute(name, self.attribute(f"{side}/embeddings/multiply_by_sqrt_depth", 1))
        if isinstance(value, int):
            return bool(value)
        if value != 1 and not math.isclose(value, root, rel_tol=1e-6):
            raise ConfigError(f"{name} {value} is not supported; it must be 1 or {root}")
        return value != 1

    def finish(self) -> None:
        """Raise `ConfigError` unless all attributes that were not read have no effect."""
        for name, value in self._attributes.items():
            ending = name.rpartition("/")[2]
            if ending not in NEUTRAL or NEUTRAL[ending] not in (None, value):
                raise ConfigError(f"{name} {value} is not supported")


def whole(name: str, value: float) -> int:
    """Return a number as an int; raise `ConfigError` if it is not whole."""
    if value != int(value):
        raise ConfigError(f"{name} must be a whole number, got {value}")
    return int(value)


def require_alike(what: str, first: object, second: object) -> None:
    """Raise `ConfigError` for two values that differ."""
    if first != second:
        raise ConfigError(f"{what} must be alike, got {first} and {second}")


def refuse(stack: Stack, *names: str) -> None:
    """Raise `ConfigError` if a stack has one of these features, which are names of its fields."""
    for name in names:
        if getattr(stack, name):
            raise ConfigError(f"this model type does not support {FEATURES[name]}")


def require_plain(stack: Stack, *names: str) -> None:
    """Raise `ConfigError` if a stack has a feature of a `llama`, or one of these: names of its fields."""
    refuse(stack, "is_rms", "is_gated", "head_norm", "window", *names)
    require_alike("heads and num_heads_kv", stack.heads, stack.key_heads)


def require_whole_width(stack: Stack) -> None:
    """Raise `ConfigError` unless the heads have the width of the layers together."""
    require_alike("num_heads x head_dim and the width", stack.heads * stack.head_size, stack.width)
