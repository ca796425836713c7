"""What the engines of Whisper share: the ids around a target, read from a folder of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FILE = "ids.json"


class Target(NamedTuple):
    """The ids that begin a target (the start, its language, its task, no timestamps), and the one that ends it."""

    begin: list[int]
    end: int

    @classmethod
    def of(cls, checkpoint: str) -> Target:
        """Read a folder of transformers."""
        found = read(Path(checkpoint) / "generation_config.json")
        language, task = found["lang_to_id"][found["language"]], found["task_to_id"][found["task"]]
        begin = [found["decoder_start_token_id"], language, task, found["no_timestamps_token_id"]]
        return cls(begin, found["eos_token_id"])

    @classmethod
    def load(cls, folder: Path) -> Target:
        """Read what `save` has written."""
        return cls(**read(folder / FILE))

    def save(self, folder: Path) -> None:
        """Write a file into a folder that an engine reads."""
        (folder / FILE).write_text(json.dumps(self._asdict()), encoding="utf-8")


def read(path: Path) -> Any:
    """Return the values of a file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))
