"""What a Transformer is made of: one frozen record, every check in one place, presets as data."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from txport.errors import ConfigError, quoted
from txport.system.documents import DocumentError, read_json
from txport.system.memory import readable

CHOICES: dict[str, tuple[str, ...]] = {
    "family": ("encoder-decoder",),
    "norm": ("pre", "post"),
    "positions": ("sinusoidal", "learned"),
    "activation": ("relu", "gelu", "silu"),
    "tied": ("none", "target", "all"),
}
LARGEST = {"max_length": 1 << 20, "encoder_layers": 1024, "decoder_layers": 1024}
LISTED = 10  # keys in an error
MOST_MEMORY = 1 << 43  # bytes; no machine that runs one model has more
LARGEST_FILE = 1 << 20  # bytes of a config.json


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes and choices of one encoder-decoder Transformer (Vaswani et al. 2017).

    `norm` places the layer norm before each sublayer ("pre", with one more norm at the end of each
    stack) or after its residual ("post"). `tied` shares the output projection with the target
    embedding ("target"), with both embeddings ("all") or with neither ("none"). `max_length` is the
    longest source and the longest target, in tokens, special tokens included. `add_source_bos` and
    `add_source_eos` say whether the sources of its training began with the start token and ended with
    the end token; targets always did.
    """

    source_vocab_size: int
    target_vocab_size: int
    family: str = "encoder-decoder"
    d_model: int = 512
    heads: int = 8
    feed_forward: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    max_length: int = 512
    norm: str = "post"
    norm_epsilon: float = 1e-5
    positions: str = "sinusoidal"
    activation: str = "relu"
    tied: str = "all"
    scale_embedding: bool = True
    dropout: float = 0.1
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    add_source_bos: bool = False
    add_source_eos: bool = True

    def __post_init__(self) -> None:
        problems = [*_wrong_types(self), *_wrong_choices(self)]
        problems = problems or [*_wrong_sizes(self), *_wrong_relations(self)] or _too_large(self)
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def head_size(self) -> int:
        """H = D / N, the width of one attention head."""
        return self.d_model // self.heads

    @property
    def parameters(self) -> int:
        """How many numbers a checkpoint of this model holds, tied ones once."""
        width, inner = self.d_model, self.feed_forward
        attention, norm = 4 * (width * width + width), 2 * width
        feed_forward = 2 * width * inner + inner + width
        encoder = self.encoder_layers * (attention + feed_forward + 2 * norm)
        decoder = self.decoder_layers * (2 * attention + feed_forward + 3 * norm)
        ends = 2 * norm if self.norm == "pre" else 0
        targets = self.target_vocab_size * (1 if self.tied != "none" else 2)
        sources = self.source_vocab_size if self.tied != "all" else 0
        positions = 2 * self.max_length if self.positions == "learned" else 0
        return encoder + decoder + ends + width * (targets + sources + positions)

    @property
    def memory(self) -> int:
        """Bytes that the model takes in fp32, its tables of positions included."""
        positions = 2 * self.max_length * self.d_model if self.positions == "sinusoidal" else 0
        return 4 * (self.parameters + positions)

    def add_special_tokens(self, source: Sequence[int]) -> list[int]:
        """A source with the start and the end token that the model expects around it."""
        start = [self.bos_id] if self.add_source_bos else []
        end = [self.eos_id] if self.add_source_eos else []
        return [*start, *source, *end]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """Build a config from JSON values; an unknown or a missing key raises `ConfigError`."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        strange = [key for key in values if key not in fields]
        unknown = [_describe_unknown(key, fields) for key in strange[:LISTED]] + strange[LISTED:]
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        missing = [f"key {name!r} is missing" for name in required if name not in values]
        if unknown or missing:
            problems = [*missing, *unknown]
            more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
            raise ConfigError("; ".join([*problems[:LISTED], *more]))
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> TransformerConfig:
        """Read a `config.json`; anything but an object of known keys raises `ConfigError`."""
        try:
            return cls.from_dict(read_json(path, LARGEST_FILE))
        except DocumentError as error:
            raise ConfigError(str(error)) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON values, in declaration order."""
        return dataclasses.asdict(self)


def _describe_unknown(key: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"unknown key {quoted(key)}" + (f" (did you mean {close[0]!r}?)" if close else "")


def _wrong_types(config: TransformerConfig) -> list[str]:
    problems = []
    for name, kind in get_type_hints(TransformerConfig).items():
        value = getattr(config, name)
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            problems.append(f"{name} must be {kind.__name__}, got {quoted(value)}")
    return problems


def _wrong_choices(config: TransformerConfig) -> list[str]:
    return [
        f"{name} must be one of {', '.join(allowed)}; got {quoted(getattr(config, name))}"
        for name, allowed in CHOICES.items()
        if getattr(config, name) not in allowed
    ]


def _wrong_sizes(config: TransformerConfig) -> list[str]:
    sizes = [
        name for name, kind in get_type_hints(TransformerConfig).items() if kind is int and not name.endswith("_id")
    ]
    problems = [
        f"{name} must be at least 1, got {quoted(getattr(config, name))}" for name in sizes if getattr(config, name) < 1
    ]
    if not 0 <= config.dropout < 1:
        problems.append(f"dropout must be in [0, 1), got {quoted(config.dropout)}")
    if not 0 < config.norm_epsilon < 1:
        problems.append(f"norm_epsilon must be in (0, 1), got {quoted(config.norm_epsilon)}")
    return problems


def _too_large(config: TransformerConfig) -> list[str]:
    """What no machine can hold, so that nobody tries."""
    problems = [
        f"{name} must be at most {largest}, got {quoted(getattr(config, name))}"
        for name, largest in LARGEST.items()
        if getattr(config, name) > largest
    ]
    if not problems and config.memory > MOST_MEMORY:
        sizes = f"{readable(config.memory)} in fp32, the most that is taken is {readable(MOST_MEMORY)}"
        problems.append(f"a model of these sizes needs {sizes}; check d_model, feed_forward and the vocabularies")
    return problems


def _wrong_relations(config: TransformerConfig) -> list[str]:
    problems = []
    if config.heads > 0 and config.d_model % config.heads:
        problems.append(f"heads must divide d_model, got {quoted(config.heads)} for {quoted(config.d_model)}")
    if config.positions == "sinusoidal" and config.d_model % 2:
        problems.append(f"sinusoidal positions need an even d_model, got {config.d_model}")
    if config.tied == "all" and config.source_vocab_size != config.target_vocab_size:
        sizes = f"{config.source_vocab_size} and {config.target_vocab_size}"
        problems.append(f"tied 'all' needs one vocabulary for source and target, got sizes {sizes}")
    in_sources = {"pad_id": True, "bos_id": config.add_source_bos, "eos_id": config.add_source_eos}
    for name, is_in_sources in in_sources.items():
        value = getattr(config, name)
        if not 0 <= value < config.target_vocab_size:
            problems.append(
                f"{name} must lie in the target vocabulary of {config.target_vocab_size}, got {quoted(value)}"
            )
        elif is_in_sources and value >= config.source_vocab_size:
            problems.append(
                f"{name} must lie in the source vocabulary of {config.source_vocab_size}, got {quoted(value)}"
            )
    return problems


# Sizes of table 3 of Vaswani et al. 2017, with the shared 32,000-token vocabulary of its English-French
# model; `tiny` is for tests and first tries.
PRESETS: dict[str, TransformerConfig] = {
    "tiny": TransformerConfig(
        source_vocab_size=64,
        target_vocab_size=64,
        d_model=32,
        heads=4,
        feed_forward=64,
        encoder_layers=2,
        decoder_layers=2,
        max_length=64,
    ),
    "base": TransformerConfig(source_vocab_size=32000, target_vocab_size=32000),
    "big": TransformerConfig(
        source_vocab_size=32000, target_vocab_size=32000, d_model=1024, heads=16, feed_forward=4096, dropout=0.3
    ),
}
