"""The page for people, in a browser: it loads nothing from elsewhere, and runs models under its own policy."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx

from tests.javascript import chromium


def test_the_page_is_alone_and_may_only_ask_its_service(http: httpx.Client) -> None:
    answer = http.get("/")
    assert re.findall(r"""(?:src|href)="([^"]*)"|url\(|@import|https?://""", answer.text) == [
        "data:,",
        "openapi.json",
        "metrics",
    ]
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';")


def test_the_page_lists_models_and_measures_in_chromium(url: str, tmp_path: Path) -> None:
    browser = chromium()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    done = subprocess.run(
        [browser, *options, "--virtual-time-budget=5000", "--dump-dom", f"{url}/"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert re.findall(r"<option [^>]*>([^<]*)</option>", done.stdout) == [
        "spell (translate)",
        "chat (continue)",
        "embed (embed)",
        "rerank (rerank)",
        "hear (transcribe)",
        "answer (answer)",
    ]
    shown = dict(re.findall(r'id="(state|running|waiting|rate)"[^>]*>([^<]*)<', done.stdout))
    assert shown["state"] == "6 models"
    assert (shown["running"], shown["waiting"]) == ("0", "0")
    assert re.fullmatch(r"\d+\.\d", shown["rate"])
