"""What the examples in a README need to know of a bundle: ids, limits, and the checkpoint's own rules for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txport.bundles.manifest import Manifest
from txport.bundles.metadata import target_start
from txport.bundles.ports import DECODER, STEP, Graph
from txport.models.audio.facts import Features
from txport.models.facts import Ability, Facts, Owner

# Settings of a checkpoint that the examples obey; the others are named as those that they do not.
OBEYED = (
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)


@dataclass(frozen=True)
class Settings:
    """Of one bundle that generates. `rules` are those that change which token comes next, by transformers' names."""

    manifest: Manifest

    @property
    def facts(self) -> Facts:
        """What is true of the model."""
        return self.manifest.facts

    @property
    def reads_features(self) -> bool:
        """Whether the source is features, not tokens."""
        return isinstance(self.facts.source, Features)

    @property
    def graph(self) -> Graph:
        """The one that gives the next token."""
        graphs = self.manifest.graphs
        return graphs[STEP] if STEP in graphs else graphs[DECODER]

    @property
    def start(self) -> tuple[int, ...]:
        """What a target begins with; nothing where a prompt does."""
        return target_start(self.facts) if self.facts.task == "seq2seq" else ()

    @property
    def most(self) -> int:
        """How many new tokens a target may have; of a causal model, less where the prompt leaves no room for them."""
        given = self.manifest.generation
        longest = self.facts.writes.longest
        if given.get("max_length") is not None:
            longest = min(longest, given["max_length"] - (self.facts.speech is None))
        if self.facts.speech is not None:
            longest -= len(self.start)
        return min(longest, longest if given.get("max_new_tokens") is None else given["max_new_tokens"])

    @property
    def rules(self) -> Mapping[str, Any]:
        """The checkpoint's rules for the next token, those that say something."""
        found = self.manifest.generation
        names = OBEYED[2:]
        return {name: found[name] for name in names if found.get(name) not in (None, 0, [], ()) or _is_id(name, found)}

    @property
    def left_out(self) -> Mapping[str, Any]:
        """What else the checkpoint says of search."""
        return {name: value for name, value in self.manifest.generation.items() if name not in OBEYED}

    @property
    def caches(self) -> dict[str, tuple[int, int]]:
        """The inputs that bring the state, and the heads and the head size of each."""
        owner: Owner | None = None if self.manifest.target == "portable" else "row"
        return {name: (int(each.dims[0]), int(each.dims[2])) for each, name in self.graph.past(owner).items()}

    @property
    def cache(self) -> tuple[int, int] | None:
        """Heads and head size of all caches; None where they are not alike."""
        found = set(self.caches.values())
        return found.pop() if len(found) == 1 else None

    @property
    def layers(self) -> int:
        """How many decoder layers there are."""
        return 1 + max(each.layer for each in self.facts.state)


def _is_id(name: str, values: Mapping[str, Any]) -> bool:
    """Whether it is a token, which may be 0."""
    return name.startswith("forced_") and values.get(name) is not None


def pooling_of(manifest: Manifest) -> tuple[str, bool]:
    """How an encoder makes one vector of a text, and whether that gets length 1."""
    return manifest.generation.get("pooling", "mean"), manifest.generation.get("normalize", False)


def ability_of(manifest: Manifest) -> Ability:
    """What an encoder is for."""
    assert manifest.facts.ability is not None
    return manifest.facts.ability
