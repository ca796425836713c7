"""Bundles as the package in `txport/runtimes/js` runs them, on Node.js and in Chromium: `make test` installs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "txport" / "runtimes" / "js"
INSTALLED = PACKAGE / "node_modules"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Request = Sequence[Any]  # a method of a model, and what it is given


def on_node(bundle: Path | str, requests: Sequence[Request], **how: Any) -> list[Any]:
    """What a bundle answers on Node.js; `how` are `load`, `web` for the wasm of onnxruntime-web, or `large` weights."""
    found: list[Any] = run("node.mjs", {"bundle": str(bundle), "requests": requests, **how})
    return found


def in_chromium(bundle: Path, runs: Sequence[Mapping[str, Any]], *, isolated: bool = False) -> list[list[Any]]:
    """What a bundle answers in a page of Chromium, for each loading of it; `isolated`, it may have threads."""
    asked = {"chromium": chromium(), "bundle": str(bundle), "runs": runs, "isolated": isolated}
    found: list[list[Any]] = run("browser.mjs", asked)
    return found


def chromium() -> str:
    """Where the browser is; a test without one is skipped."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


def node() -> str:
    """Where Node.js is; a test without it, or without what the package is tested with, is skipped."""
    found = shutil.which("node")
    if found is None or not INSTALLED.is_dir():
        pytest.skip(
            "needs Node.js and the packages that txport/runtimes/js is tested with: `make test` installs them by npm"
        )
    return found


def run(script: str, asked: Mapping[str, Any]) -> Any:
    """What a script of the package's tests answers."""
    command = [node(), str(PACKAGE / "test" / script)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
