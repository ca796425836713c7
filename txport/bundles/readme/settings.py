"""What a program that runs a bundle needs to know: the tokens of a target, and the checkpoint's settings for search."""

from __future__ import annotations

from typing import Any

from txport.bundles.manifest import Manifest
from txport.bundles.metadata import target_start
from txport.models.audio import Features

RULES = (  # settings that forbid or force tokens, in transformers' words; the loop of the README obeys them
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "min_new_tokens",
)
LENGTHS = ("max_new_tokens", "max_length", "min_length")  # the last two count the prompt of a causal model


def reads_features(manifest: Manifest) -> bool:
    """Return whether the source is audio features, not tokens."""
    return isinstance(manifest.facts.source, Features)


def start(manifest: Manifest) -> tuple[int, ...]:
    """Return the tokens at the start of a target; () for a causal model."""
    return target_start(manifest.facts) if manifest.facts.is_encoder_decoder else ()


def most(manifest: Manifest) -> int:
    """Return the maximum number of new tokens; a causal model can have fewer after a long prompt."""
    given = manifest.generation
    facts = manifest.facts
    longest = facts.writes.longest
    if given.get("max_length") is not None and facts.is_encoder_decoder:
        longest = min(longest, given["max_length"] - (facts.speech is None))
    if facts.speech is not None:
        longest -= len(start(manifest))
    return min(longest, longest if given.get("max_new_tokens") is None else given["max_new_tokens"])


def rules(manifest: Manifest) -> dict[str, Any]:
    """Return the checkpoint's rules for the next token that have an effect."""
    found = dict(manifest.generation)
    least = found.get("min_length") or 0
    if manifest.facts.is_encoder_decoder and not found.get("min_new_tokens"):
        found["min_new_tokens"] = max(0, least - len(start(manifest)))
    is_set = {name: found.get(name) not in (None, [], ()) for name in RULES}
    return {name: found[name] for name in RULES if is_set[name] and (found[name] or name.startswith("forced_"))}


def left_out(manifest: Manifest) -> list[str]:
    """Return the names of the checkpoint's other settings for search."""
    obeyed = (*RULES, *(LENGTHS if manifest.facts.is_encoder_decoder else LENGTHS[:1]))
    return [name for name in manifest.generation if name not in obeyed]


def pooling_of(manifest: Manifest) -> tuple[str, bool]:
    """Return the default pooling of an encoder-only model, and whether vectors are normalised to length 1."""
    return manifest.generation.get("pooling", "mean"), manifest.generation.get("normalize", False)
