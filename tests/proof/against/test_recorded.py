"""`txport export --against`: the comparison with the original is made before anything is written, and recorded."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.called import Cli
from tests.proof.against.test_against import FILE, GPT, NAMES, fitting, save
from tests.recorded.__init__ import whole
from txport.bundles.comparisons import COMPARED, NOT_COMPARED, require_original
from txport.models.names import MANIFEST

ORIGINAL = f"{FILE}:separate"
TRUSTED = ("--against", ORIGINAL, "--trust-code")
TRANSFORMERS = "not compared with the original: transformers is not installed"


def test_every_page_says_what_was_compared(call: Cli, tmp_path: Path) -> None:
    folder = save(tmp_path / "own", "separate", GPT, fitting("separate", NAMES))
    bundle = tmp_path / "bundle"
    code, out, _ = call("export", folder, bundle, *TRUSTED)
    last = out.splitlines()[-1]
    assert code == 0
    assert re.fullmatch(
        r"equal to originals\.py:separate: logits within 1e-09 of the largest value, in float64, up to \d+ tokens", last
    )
    assert f"original: {last}" in call("inspect", bundle)[1].splitlines()
    code, out, _ = call("verify", bundle)
    assert (code, f"recorded at export: {last}" in out.splitlines()) == (0, True)
    assert json.loads(call("verify", bundle, "--json")[1])["recorded_at_export"] == last
    assert call("inspect", bundle, "--brief", "--html", tmp_path / "page.html")[0] == 0
    assert last in html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    reports = ("--report", tmp_path / "report.json", "--markdown", tmp_path / "report.md")
    code, out, _ = call("parity", bundle, "--checkpoint", folder, *reports)
    assert (code, f"recorded at export: {last}" in out.splitlines()) == (0, True)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["recorded_at_export"] == last
    assert f"recorded at export: {last}" in (tmp_path / "report.md").read_text(encoding="utf-8").replace("\\", "")
    page = (bundle / "README.md").read_text(encoding="utf-8").replace("\\", "")
    assert f"| comparison with the original | {last} |" in page
    values = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    (bundle / MANIFEST).write_text(json.dumps({**values, "original": {"name": "mine"}}), encoding="utf-8")
    code, _, err = call("inspect", bundle)
    assert (code, "is damaged: 'outputs' is missing" in err) == (2, True)


def test_nothing_is_written_that_differs(call: Cli, tmp_path: Path) -> None:
    wrong = {**GPT, "activation": "relu"}
    folder = save(tmp_path / "own", "separate", wrong, fitting("separate", NAMES))
    code, out, err = call("export", folder, tmp_path / "bundle", *TRUSTED)
    assert (code, out, (tmp_path / "bundle").exists()) == (1, "", False)
    assert "own as it was read does not compute what originals.py:separate does: logits differ by up to" in err
    assert "cause in the original, gelu in place of relu" in err
    code, out, _ = call("export", folder, tmp_path / "bundle", "--against", "none")
    assert (code, out.splitlines()[-1]) == (0, "not compared with the original: that was not wanted")


def test_the_reason_is_recorded_where_nothing_is_compared(
    call: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    folder = whole("llama", tmp_path / "llama")
    code, out, _ = call("export", folder, tmp_path / "bundle")
    assert (code, out.splitlines()[-1]) == (0, TRANSFORMERS)
    code, _, err = call("export", folder, tmp_path / "other", "--against", "transformers")
    assert (code, (tmp_path / "other").exists()) == (3, False)
    assert "pip install 'txport[hf]'" in err
    own = save(tmp_path / "own", "separate", GPT, fitting("separate", NAMES))
    assert (
        call("export", own, tmp_path / "rules")[1]
        .splitlines()[-1]
        .endswith("no original was named; `txport export --against` names it")
    )


@pytest.mark.parametrize(
    "record",
    [[], {NOT_COMPARED: 1}, {**dict.fromkeys(COMPARED, "x")}, {"name": "x"}],
    ids=["list", "reason", "types", "few"],
)
def test_a_damaged_record_is_refused(record: Any) -> None:
    with pytest.raises((TypeError, KeyError)):
        require_original(record)


def test_a_preset_has_no_other_original(call: Cli, tmp_path: Path) -> None:
    code, _, err = call("export", "preset:additive-tiny", tmp_path / "bundle", *TRUSTED)
    assert (code, (tmp_path / "bundle").exists()) == (2, False)
    assert "its own original" in err
