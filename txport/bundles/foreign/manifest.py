"""The substitute for a manifest, for a folder exported by other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txport.bundles.manifest import Manifest
from txport.models.facts import Facts
from txport.models.names import CONFIG
from txport.targets.ports import Graph, Port


@dataclass(frozen=True, kw_only=True)
class ForeignManifest(Manifest):
    """The manifest of a folder without `txport.json`; `read` are its graphs as their files declare them.

    `texts`: files of its tokenizers, by a bundle's names, each as a path or as its text. `pads`: whether the graphs
    accept rows of different lengths in one batch. `has_integers`: whether they multiply integers.
    """

    layout: str
    variant: str
    read: Mapping[str, Graph]
    texts: Mapping[str, Path | str] = field(default_factory=dict)
    pads: bool = True
    has_integers: bool = True

    @property
    def driven(self) -> dict[str, Graph]:
        """The graphs by role, with the ports in use."""
        return dict(self.read)

    @property
    def written_in(self) -> str:
        """See `Manifest.written_in`."""
        return CONFIG

    def texts_in(self, folder: Path) -> Mapping[str, Path | str]:
        """See `Manifest.texts_in`."""
        return self.texts

    def is_of(self, sha256: str) -> bool:
        """See `Manifest.is_of`: always True, since the folder does not state its checkpoint."""
        return True

    @property
    def has_past(self) -> bool:
        """Whether the decoder keeps a state from step to step."""
        return any(graph.past() for graph in self.read.values())

    def differences(self, described: Mapping[str, Any]) -> Iterator[tuple[str, Any, object]]:
        """See `Manifest.differences`: compares only the facts that determine what the graphs compute."""
        found, expected = (_comparable(facts) for facts in (self.facts, Facts.from_dict(described["facts"])))
        for name, value in expected.items():
            if found[name] != value and not (name == "state" and not self.has_past):
                yield name, found[name], value

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "target": self.target,
            "layout": self.layout,
            "variant": self.variant,
            "precision": self.precision,
            "opset": self.opset,
            "architecture": self.architecture,
            "config": self.config,
            "facts": self.facts.to_dict(),
            "generation": dict(self.generation),
            "not_followed": dict(self.not_followed),
            "graphs": {role: graph.to_dict() for role, graph in self.read.items()},
            "texts": sorted(self.texts),
            "files": self.files,
        }


def _comparable(facts: Facts) -> dict[str, object]:
    """Return the facts that determine what a model computes, and where its targets begin and end."""
    writes = facts.writes
    return {
        "task": facts.task,
        "width": facts.width,
        "source vocabulary": facts.vocabulary.size,
        "target vocabulary": writes.size,
        "start": writes.start,
        "ends": sorted(writes.ends),
        "state": sorted((each.layer, each.role, each.owner, each.dims) for each in facts.state),
        "outputs": sorted((each.name, each.dims) for each in facts.outputs),
    }


def names_differ(graph: Graph, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Iterator[str]:
    """Yield one sentence per port that the runtime lacks or finds with another type or rank than the graph's."""
    for side, expected, found in (("input", graph.inputs, inputs), ("output", graph.outputs, outputs)):
        there = {port.name: (port.dtype, len(port.dims)) for port in found}
        for port in expected:
            if there.get(port.name) != (port.dtype, len(port.dims)):
                yield f"{graph.file}: {side} {port.name} is {there.get(port.name, 'missing')} to the engine"
