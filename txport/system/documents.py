"""JSON files, written so that people can read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Readable JSON with a line end at the end."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
