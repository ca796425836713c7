"""Rules of the single graph's search, fixed at export: special tokens and generation options of the bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from txport.bundles.manifest import Manifest
from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts
from txport.models.options import needing

# Options of a search that are inputs of the graph, or select among its outputs: each call chooses them.
ASKED = frozenset({"beams", "nbest", "length_penalty", "max_new_tokens", "max_length"})
BUILT_IN = frozenset(
    {
        "early_stopping",
        "min_length",
        "min_new_tokens",
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "no_repeat_ngram_size",
        "repetition_penalty",
    }
)
WITHOUT = {"beam_groups": 1, "do_sample": False, "diversity_penalty": 0.0}  # values without effect
MOST_WORDS = 64  # maximum number of forbidden sequences: each adds nodes to every step


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Fixed options of a graph's search; names and meanings are those of `SearchOptions`."""

    facts: Facts
    early_stopping: bool | str = False
    min_length: int = 0
    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0

    @property
    def never(self) -> tuple[int, ...]:
        """Return the tokens that are never generated."""
        alone = (words[0] for words in self.bad_words_ids if len(words) == 1)
        return tuple(sorted({*self.suppress_tokens, *alone}))

    @property
    def needs_history(self) -> bool:
        """True if the allowed or penalised next tokens depend on previous tokens."""
        has_sequences = any(len(words) > 1 for words in self.bad_words_ids)
        return has_sequences or self.no_repeat_ngram_size > 0 or self.repetition_penalty != 1


def rules_of(manifest: Manifest) -> Rules:
    """Return the rules of a bundle; raise `UnsupportedError` for options that the single graph does not support."""
    for problem in _problems(manifest.generation, is_causal=manifest.facts.is_causal):
        fix = "change its generation_config.json, or leave single out"
        raise UnsupportedError(
            f"single searches greedily and by beams, and this checkpoint's defaults {problem}; {fix}"
        )
    found = {name: _fixed(value) for name, value in manifest.generation.items() if name in BUILT_IN}
    return Rules(facts=manifest.facts, **found)


def _problems(generation: Mapping[str, Any], *, is_causal: bool) -> Iterator[str]:
    """Yield the reasons why the options of a checkpoint are not supported."""
    if generation.get("do_sample"):
        yield "draw samples (do_sample)"
    if generation.get("beam_groups", 1) != 1:
        yield f"have {quoted(generation['beam_groups'])} groups of beams (num_beam_groups), and the graph has one"
    if (count := sum(len(words) > 1 for words in generation.get("bad_words_ids", ()))) > MOST_WORDS:
        yield f"forbid {count} sequences of tokens (bad_words_ids), and a graph may forbid {MOST_WORDS}"
    if is_causal and (length := next((name for name in ("max_length", "min_length") if generation.get(name)), None)):
        yield f"have {length} {quoted(generation[length])}, which counts the prompt, and the graph counts new tokens"
    if others := sorted(
        name for name in generation if name not in {*ASKED, *BUILT_IN, *WITHOUT, *needing("do_sample")}
    ):
        yield f"have {others[0]} {quoted(generation[others[0]])}, which the graph has not"


def _fixed(value: object) -> Any:
    """Convert a JSON value to an option: lists become tuples."""
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value
