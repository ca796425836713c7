"""Settings of a bundle for the examples in its README: ids, limits, and the checkpoint's rules for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txport.bundles.manifest import Manifest
from txport.bundles.metadata import target_start
from txport.bundles.ports import DECODER, STEP, Graph
from txport.models.audio.facts import Features
from txport.models.facts import Ability, Facts, Owner

# Settings of a checkpoint that the examples apply; the page lists the others as not applied.
OBEYED = (
    "max_new_tokens",
    "max_length",
    "min_length",
    "min_new_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
COUNT_PROMPTS = ("max_length", "min_length")  # of causal models they count the prompt, and are not applied


@dataclass(frozen=True)
class Settings:
    """Settings of a generating bundle. `rules` are the settings that change the next token, by transformers' names."""

    manifest: Manifest

    @property
    def facts(self) -> Facts:
        """The facts about the model."""
        return self.manifest.facts

    @property
    def reads_features(self) -> bool:
        """Whether the source is audio features, not tokens."""
        return isinstance(self.facts.source, Features)

    @property
    def graph(self) -> Graph:
        """The graph that computes the next token."""
        graphs = self.manifest.graphs
        return graphs[STEP] if STEP in graphs else graphs[DECODER]

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens at the start of a target; () for a causal model."""
        return target_start(self.facts) if self.facts.task == "seq2seq" else ()

    @property
    def most(self) -> int:
        """The maximum number of new tokens; a causal model can have fewer after a long prompt."""
        given = self.manifest.generation
        longest = self.facts.writes.longest
        if given.get("max_length") is not None and self.facts.task == "seq2seq":
            longest = min(longest, given["max_length"] - (self.facts.speech is None))
        if self.facts.speech is not None:
            longest -= len(self.start)
        return min(longest, longest if given.get("max_new_tokens") is None else given["max_new_tokens"])

    @property
    def rules(self) -> Mapping[str, Any]:
        """The checkpoint's rules for the next token that have an effect."""
        found = dict(self.manifest.generation)
        is_counted = self.facts.task == "seq2seq"
        if (least := found.get("min_length", 0)) and is_counted and not found.get("min_new_tokens"):
            found["min_new_tokens"] = max(0, least - len(self.start))
        names = OBEYED[3:]
        return {name: found[name] for name in names if found.get(name) not in (None, 0, [], ()) or _is_id(name, found)}

    @property
    def left_out(self) -> Mapping[str, Any]:
        """The checkpoint's other settings of search, which the examples do not apply."""
        obeyed = OBEYED if self.facts.task == "seq2seq" else [name for name in OBEYED if name not in COUNT_PROMPTS]
        return {name: value for name, value in self.manifest.generation.items() if name not in obeyed}

    @property
    def caches(self) -> dict[str, tuple[int, int]]:
        """The cache inputs that the example creates: name -> number of heads, head size."""
        owner: Owner | None = None if self.manifest.target == "portable" else "row"
        return {name: (int(each.dims[0]), int(each.dims[2])) for each, name in self.graph.past(owner).items()}

    @property
    def cache(self) -> tuple[int, int] | None:
        """The number of heads and the head size of all caches; None if they differ."""
        found = set(self.caches.values())
        return found.pop() if len(found) == 1 else None

    @property
    def layers(self) -> int:
        """The number of decoder layers."""
        return 1 + max(each.layer for each in self.facts.state)


def _is_id(name: str, values: Mapping[str, Any]) -> bool:
    """Whether the rule is a forced token that is set; its id can be 0."""
    return name.startswith("forced_") and values.get(name) is not None


def pooling_of(manifest: Manifest) -> tuple[str, bool]:
    """Return the default pooling of an encoder-only model, and whether vectors are normalised to length 1."""
    return manifest.generation.get("pooling", "mean"), manifest.generation.get("normalize", False)


def ability_of(manifest: Manifest) -> Ability:
    """Return what an encoder-only model can do."""
    assert manifest.facts.ability is not None
    return manifest.facts.ability
