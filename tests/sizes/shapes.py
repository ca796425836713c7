"""Published models: their `config.json` and other files on the Hugging Face hub, and what an export may take.

`published/` holds a file for each. `folders.write_folder` writes a checkpoint of a shape. `short` has what makes long
contexts expensive (heads, positions, windows) and two layers, for tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent / "published"
NAMES = (
    *("smollm2-135m", "gemma3-270m", "qwen2.5-0.5b", "llama3.2-1b", "bge-m3", "modernbert-base", "bart-large"),
    *("nllb-600m", "whisper-small", "whisper-medium", "opus-mt", "flan-t5-base", "bert-base"),
)


@dataclass(frozen=True)
class Limits:
    """Ceilings of the writing and of the export of a model, in every target and precision."""

    memory: float  # GB
    seconds: float


@dataclass(frozen=True)
class Shape:
    """A published model without its weights. `files` are JSON files beside `config.json`, by name.

    `short_config` and `short_files` are the values that its short form replaces.
    """

    name: str
    config: Mapping[str, Any]
    short_config: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    short_files: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None

    def short(self) -> Shape:
        """Return this shape with few layers, a small vocabulary and small feed-forward layers."""
        return replace(
            self,
            name=f"{self.name}-short",
            config={**self.config, **self.short_config},
            files={**self.files, **self.short_files},
            limits=None,
        )


def read_shape(name: str) -> Shape:
    """Read a published shape."""
    values = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    limits = values.pop("limits", None)
    return Shape(name, **values, limits=limits and Limits(**limits))


SHAPES = {name: read_shape(name) for name in NAMES}
