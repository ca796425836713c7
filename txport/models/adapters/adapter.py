"""What an adapter says of a module of the user's own: its facts, and how it encodes and steps. Needs no torch.

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

SHORTEST = 8  # tokens that the longest sequence has at least: a trace needs several lengths within it
DIGIT = 1024  # a token that is kept in place of caches is two numbers below this, or about it: exact in fp16 too
MOST_TOKENS = 2048 * DIGIT


class StepInputs(NamedTuple):
    """What a step reads: `ids` and whatever follows from them, the caches, and what was encoded.

    `seen` is True where a new token may look: at itself and at all before it, padding left out; a token of padding sees
    itself, so that no row of attention is empty. A module without caches is given all tokens so far, and no `past`.
    """

    ids: Tensor  # (B, T) int64
    positions: Tensor  # (B, T) int64: the place of each in its row, padding not counted
    seen: Tensor  # (B or 1, 1, T, P + T) bool
    past: Pairs = ()  # of each layer, keys and values (B, G, P, H)
    source: Tensor | None = None  # (B, S, D), as `encode` gave it
    source_seen: Tensor | None = None  # (B, 1, 1, S) bool, False on padding
    source_past: Pairs = ()  # of each layer, keys and values (B, G, S, H), as `project` gave them


@dataclass(frozen=True)
class Cache:
    """The keys and values of one layer, (B, heads, length, size) each; values of another size have `value_size`."""

    heads: int
    size: int
    value_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Config):
    """What a manifest says of a module that has no config: the name of its class."""

    module: str


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """How a module is run; `seq2seq`, `causal` and `encoder` make one.

    `load` gives the module with its weights, for commands that are given a file of code; `folder` has the tokenizers
    and samples that go into the bundle.
    """

    facts: Facts
    encode: Callable[..., Any] | None = None
    project: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None
    has_caches: bool = False
    load: Callable[[], Any] | None = None
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

    def functions(self) -> list[Callable[..., Any]]:
        """Those that run the module."""
        return [each for each in (self.encode, self.project, self.step) if each is not None]


def seq2seq(
    *,
    source: Tokens,
    target: Tokens,
    width: int,
    encode: Callable[..., Any],
    step: Callable[..., Any],
    caches: Sequence[Cache] | None = None,
    project: Callable[..., Any] | None = None,
    source_caches: Sequence[Cache] | None = None,
    load: Callable[[], Any] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """An encoder and a decoder; `width` is the D of the encoder's output.

    `encode(module, ids, mask)` -> states (B, S, D), of ids (B, S) and a mask (B, S) bool that is False on padding.
    `step(module, inputs)`, of `StepInputs` -> logits (B, T, V) and the grown caches, a pair (B, G, P + T, H) for each
    of `caches`; without `caches` -> logits of all tokens so far.
    `project(module, states)`, if there is one, -> keys and values of the source, a pair (B, G, S, H) for each of
    `source_caches`, each place from that place of the states alone: they are computed once for a source.

    Raises `ConfigError` for what does not go together.
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
    step: Callable[..., Any],
    caches: Sequence[Cache] | None = None,
    load: Callable[[], Any] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """A decoder that goes on from a prompt; `step` is that of `seq2seq`, without anything of a source."""
    own = _tensors("row", [Cache(1, 1)] if caches is None else _several("caches", caches))
    facts = _facts("causal", width, target=tokens, state=own)
    return Adapter(facts=facts, step=step, has_caches=caches is not None, load=load, folder=folder)


def encoder(
    *,
    tokens: Tokens,
    width: int,
    encode: Callable[..., Any],
    outputs: Mapping[str, Sequence[int | str]] | None = None,
    labels: Sequence[str] = (),
    function_to_apply: Function | None = None,
    load: Callable[[], Any] | None = None,
    folder: str | Path | None = None,
) -> Adapter:
    """A model that only encodes.

    `encode(module, ids, mask)`, as of `seq2seq` -> one tensor, or several by name: (B, ...) with the dims of `outputs`,
    in which "length" stands for S. By default that is `last_hidden_state`, ("length", width). An output called `logits`
    is over `labels`, of each text or each token; without labels, over the vocabulary. `function_to_apply` makes scores
    of the logits over labels, as in pipelines of transformers: "softmax" where labels exclude each other, "sigmoid"
    where they do not, "none" where a logit is the value that is asked for; by default softmax, of one label sigmoid.
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


def _several(what: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"{what} must be a list, got {quoted(values)}")
    return list(values)


def _tensors(owner: Owner, caches: Sequence[Cache]) -> tuple[StateTensor, ...]:
    """The tensors of the state, by layer."""
    found = []
    for layer, each in enumerate(caches):
        if not isinstance(each, Cache):
            raise ConfigError(f"a layer's cache must be a Cache, got {quoted(each)}")
        values = each.size if each.value_size is None else each.value_size
        found.append(StateTensor(layer, "key", owner, (each.heads, LENGTH, each.size)))
        found.append(StateTensor(layer, "value", owner, (each.heads, LENGTH, values)))
    return tuple(found)
