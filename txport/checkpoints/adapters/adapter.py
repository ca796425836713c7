"""Adapters: facts about a user's module, and functions that run it. Does not import PyTorch.

Letters: B rows, S source length, T new tokens, P past tokens, G heads of a cache, H their size, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from txport.errors import ConfigError, quoted
from txport.models.config import Config
from txport.models.facts import (
    HIDDEN,
    LENGTH,
    Facts,
    Function,
    Output,
    Owner,
    StateTensor,
    Task,
    Tokens,
    by_layer,
    usual_function,
)

if TYPE_CHECKING:
    from torch import Tensor

    Pairs = Sequence[tuple[Tensor, Tensor]]

SHORTEST = 8  # minimum of the longest sequence, in tokens: a trace needs several lengths below it
DIGIT = 1024  # without caches, the state has id // DIGIT and id % DIGIT of each token, which are exact in fp16 too
MOST_TOKENS = 2048 * DIGIT
BERT = {  # its class for each ability
    "embed": "BertModel",
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "fill": "BertForMaskedLM",
    "answer": "BertForQuestionAnswering",
}


class StepInputs(NamedTuple):
    """Inputs of a step: new tokens with positions and mask, the caches, and the encoded source.

    `seen` is the attention mask: True where a new token may attend, which is to itself and to all earlier tokens
    without padding. A padding token attends to itself, so that no row is empty. A module without caches gets all tokens
    so far, and no `past`.
    """

    ids: Tensor  # (B, T) int64
    positions: Tensor  # (B, T) int64: the position of each token in its row, padding not counted
    seen: Tensor  # (B or 1, 1, T, P + T) bool
    past: Pairs = ()  # keys and values of each layer: (B, G, P, H)
    source: Tensor | None = None  # (B, S, D), the output of `encode`
    source_seen: Tensor | None = None  # (B, 1, 1, S) bool, False on padding
    source_past: Pairs = ()  # keys and values of each layer: (B, G, S, H), the outputs of `project`


@dataclass(frozen=True)
class Cache:
    """The cache of one layer: keys (B, heads, length, size), values the same or with `value_size` as their size."""

    heads: int
    size: int
    value_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Config):
    """The config of a user's module in a manifest: the name of its class."""

    module: str


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Describes how a user's module is run; created by `seq2seq`, `causal` or `encoder`.

    `load` returns the module with its weights, for commands that accept a file of code. `folder` contains the
    tokenizers and samples for the bundle. Raises `ConfigError` for invalid values.
    """

    facts: Facts
    encode: Callable[..., object] | None = None
    project: Callable[..., object] | None = None
    step: Callable[..., object] | None = None
    has_caches: bool = False
    load: Callable[[], object] | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        needed = {"seq2seq": ("encode", "step"), "causal": ("step",), "encode": ("encode",)}[self.facts.task]
        for name in ("encode", "project", "step", "load"):
            function = getattr(self, name)
            if not callable(function) and (function is not None or name in needed):
                raise ConfigError(f"{name} of an adapter must be a function, got {quoted(function)}")
        if self.folder is not None and not isinstance(self.folder, str | Path):
            raise ConfigError(f"folder of an adapter must be a path, got {quoted(self.folder)}")
        try:
            Facts.from_dict(self.facts.to_dict())
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"an adapter can't have these facts: {error}") from error
        for side in (self.facts.reads, self.facts.writes):
            if side.longest < SHORTEST:
                raise ConfigError(f"an adapter's longest sequence must be {SHORTEST} or more, got {side.longest}")
            if not self.has_caches and side.size > MOST_TOKENS:
                raise ConfigError(f"a vocabulary of more than {MOST_TOKENS} needs caches, got {side.size}")

    def functions(self) -> list[Callable[..., object]]:
        """Return the functions that run the module: `encode`, `project` and `step`, as far as they are set."""
        return [each for each in (self.encode, self.project, self.step) if each is not None]


def seq2seq(
    *,
    source: Tokens,
    target: Tokens,
    width: int,
    encode: Callable[..., object],
    step: Callable[..., object],
    caches: Sequence[Cache] | None = None,
    project: Callable[..., object] | None = None,
    source_caches: Sequence[Cache] | None = None,
    load: Callable[[], object] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """Return the adapter of an encoder-decoder; `width` is the size D of the encoder's output.

    `encode(module, ids, mask)` -> states (B, S, D), for ids (B, S) and a mask (B, S) bool that is False on padding.
    `step(module, inputs)`, with `StepInputs` -> logits (B, T, V) and the grown caches: a pair (B, G, P + T, H) for each
    of `caches`. Without `caches`, it returns only the logits of all tokens so far, (B, P + T, V).
    `project(module, states)`, optional -> keys and values of the source: a pair (B, G, S, H) for each of
    `source_caches`. They are computed once per source, so each position must depend only on its own state.

    Raises `ConfigError` for invalid or inconsistent arguments.
    """
    if (project is None) != (source_caches is None):
        raise ConfigError("project gives the source_caches: give both or none of them")
    if project is not None and caches is None:
        raise ConfigError("project is for a step with caches: without them, everything is computed anew each time")
    own = _tensors("row", [Cache(1, 1)] if caches is None else _several("caches", caches))
    kept = [Cache(1, 1)] * (len(own) // 2) if source_caches is None else _several("source_caches", source_caches)
    if 2 * len(kept) != len(own):
        raise ConfigError(f"caches and source_caches must be of as many layers, got {len(own) // 2} and {len(kept)}")
    facts = _facts("seq2seq", width, source=source, target=target, state=by_layer(own, _tensors("source", kept)))
    more = {"has_caches": caches is not None, "load": load, "folder": folder}
    return Adapter(facts=facts, encode=encode, project=project, step=step, **more)  # type: ignore[arg-type]


def causal(
    *,
    tokens: Tokens,
    width: int,
    step: Callable[..., object],
    caches: Sequence[Cache] | None = None,
    load: Callable[[], object] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """Return the adapter of a causal model; `step` and `caches` are as in `seq2seq`, without a source."""
    own = _tensors("row", [Cache(1, 1)] if caches is None else _several("caches", caches))
    facts = _facts("causal", width, target=tokens, state=own)
    return Adapter(facts=facts, step=step, has_caches=caches is not None, load=load, folder=folder)


def encoder(
    *,
    tokens: Tokens,
    width: int,
    encode: Callable[..., object],
    outputs: Mapping[str, Sequence[int | str]] | None = None,
    labels: Sequence[str] = (),
    function_to_apply: Function | None = None,
    load: Callable[[], object] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """Return the adapter of an encoder-only model.

    `encode(module, ids, mask)`, with the arguments of `seq2seq` -> one tensor, a tuple, or a mapping by name. Each
    tensor is (B, ...) with the dims of `outputs`, in which "length" stands for S; the default is `last_hidden_state`
    with ("length", width). An output named `logits` is over `labels`, per text or per token; without `labels`, it is
    over the vocabulary. `function_to_apply` converts logits over labels to scores, as in pipelines of transformers:
    "softmax" (exclusive labels), "sigmoid" (independent labels) or "none" (regression). The default is softmax, or
    sigmoid for a single label. Raises `ConfigError` for invalid or inconsistent arguments.
    """
    dims = {HIDDEN: (LENGTH, width)} if outputs is None else outputs
    if not isinstance(dims, Mapping):
        raise ConfigError(f"outputs must be dims by name, got {quoted(dims)}")
    found = tuple(Output(name, tuple(_several(f"the dims of {name}", each))) for name, each in dims.items())
    named = tuple(_several("labels", labels))
    function = usual_function(named) if function_to_apply is None else function_to_apply
    facts = _facts("encode", width, source=tokens, outputs=found, labels=named, function_to_apply=function)
    return Adapter(facts=facts, encode=encode, load=load, folder=folder)


def _facts(task: Task, width: int, **more: Any) -> Facts:
    for name in ("source", "target"):
        if name in more and not isinstance(more[name], Tokens):
            raise ConfigError(f"the vocabulary of an adapter must be Tokens, got {quoted(more[name])}")
    if "target" in more:
        tokens = more["target"]
        more["target"] = dataclasses.replace(tokens, ends=tuple(_several("ends", tokens.ends)))
    return Facts(task=task, width=width, **more)


def _several(what: str, values: object) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"{what} must be a list, got {quoted(values)}")
    return list(values)


def _tensors(owner: Owner, caches: Sequence[Cache]) -> tuple[StateTensor, ...]:
    """Return the key tensor and the value tensor of each layer's cache."""
    found = []
    for layer, each in enumerate(caches):
        if not isinstance(each, Cache):
            raise ConfigError(f"a layer's cache must be a Cache, got {quoted(each)}")
        values = each.size if each.value_size is None else each.value_size
        found.append(StateTensor(layer, "key", owner, (each.heads, LENGTH, each.size)))
        found.append(StateTensor(layer, "value", owner, (each.heads, LENGTH, values)))
    return tuple(found)


def published(facts: Facts) -> dict[str, object]:
    """Return the `config.json` by which other programs run an adapter's graphs: that of a model with the same ports.

    It is a Marian model, a GPT-2 or a BERT, with the cache sizes of the first layer.
    """
    if not facts.generates:
        return _encoder(facts)
    heads, _, size = facts.owned("row")[0].dims
    layers = len(facts.owned("row")) // 2
    width = int(heads) * int(size)
    if facts.is_causal:
        sizes = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": facts.writes.longest}
        known = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
        return {**known, "vocab_size": facts.writes.size, **sizes}
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "vocab_size": facts.writes.size,
        "decoder_vocab_size": facts.writes.size,
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "num_hidden_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "max_position_embeddings": max(facts.reads.longest, facts.writes.longest),
    }


def _encoder(facts: Facts) -> dict[str, object]:
    assert facts.ability is not None
    return {
        "model_type": "bert",
        "architectures": [BERT[facts.ability]],
        "vocab_size": facts.reads.size,
        "hidden_size": facts.width,
        "max_position_embeddings": facts.reads.longest,
    }
