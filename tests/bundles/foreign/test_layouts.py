"""Models that others exported, in every layout: they say what transformers says, which wrote their checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.bundles.foreign.layouts import CAUSAL, ENCODE, SENTENCES, SEQ2SEQ, lay_out
from tests.checkpoints.families.test_families import PROMPTS, SEARCHES, SOURCES, TEXTS, cut, rewrite, said
from txport.api.locate import open_bundle
from txport.bundles.bundle import Bundle

CASES = [*(("t5", layout) for layout in SEQ2SEQ), *(("gpt2", layout) for layout in CAUSAL)]
CASES += [("marian", "merged"), ("marian", "apart"), ("whisper", "merged"), ("whisper", "apart"), ("llama", "one")]
ENCODERS = [("bert", layout) for layout in (*ENCODE, *SENTENCES)]
ENCODERS += [(name, "typed") for name in ("bert-tokens", "bert-labels", "bert-token-labels")]
Portable = Callable[[str], Bundle]


def inputs_of(name: str, task: str) -> Any:
    """What the expected tokens were recorded for: sources of unequal lengths."""
    expected = said(name)
    return list(expected["features"]) if "features" in expected else PROMPTS if task == "causal" else SOURCES


def require_same(path: Path, name: str, *, batch_size: int = 32, **how: Any) -> None:
    """Greedy and beam search give transformers' tokens."""
    model = txport.load(path, threads=1, **how)
    expected = said(name)
    for kind in ("greedy", "beams"):
        found = model.search(inputs_of(name, model.facts.task), batch_size=batch_size, **SEARCHES[kind])
        ends = model.facts.writes.ends
        wanted = [[cut(row, ends) for row in np.atleast_2d(rows)] for rows in expected[kind]]
        assert [[list(each.tokens) for each in row] for row in found] == wanted, kind


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_tokens_are_those_of_transformers(name: str, layout: str, portable: Portable, tmp_path: Path) -> None:
    place = "onnx" if len(layout) % 2 else ""  # as transformers.js's converter has it, or as Optimum
    folder = lay_out(portable(name), layout, tmp_path / "foreign", place=place)
    manifest = open_bundle(folder).manifest
    assert manifest.layout in layout or manifest.layout == "one"
    assert manifest.has_past != ("whole" in layout)
    assert manifest.pads != ("unplaced" in layout)
    require_same(folder, name)


@pytest.mark.parametrize(("name", "layout"), [("t5", "merged"), ("gpt2", "unplaced"), ("gpt2", "one")])
def test_a_row_alone_is_a_row_in_a_batch(name: str, layout: str, portable: Portable, tmp_path: Path) -> None:
    require_same(lay_out(portable(name), layout, tmp_path / "foreign"), name, batch_size=1)


@pytest.mark.parametrize(("name", "layout"), [("marian", "apart"), ("gpt2", "merged")])
def test_onnx_s_evaluator_says_the_same(name: str, layout: str, portable: Portable, tmp_path: Path) -> None:
    folder = lay_out(portable(name), layout, tmp_path / "foreign")
    model = txport.load(folder, runtime="reference")
    expected = said(name)
    found = model.search(inputs_of(name, model.facts.task)[:2], **SEARCHES["greedy"])
    wanted = [cut(np.squeeze(row), model.facts.writes.ends) for row in expected["greedy"][:2]]
    assert [list(row[0].tokens) for row in found] == wanted


@pytest.mark.parametrize(("name", "layout"), ENCODERS)
def test_outputs_are_those_of_transformers(name: str, layout: str, portable: Portable, tmp_path: Path) -> None:
    """Texts of unequal lengths together; a graph without a mask must not see what is padding."""
    folder = lay_out(portable(name), layout, tmp_path / "foreign")
    rewrite(folder / "config.json", mask_token_id=5)  # which a tokenizer would say
    model = txport.load(folder)
    expected = said(name)
    lengths = np.array([len(text) for text in TEXTS])
    ids = np.array([[*text, *[0] * (lengths.max() - len(text))] for text in TEXTS])
    outputs = model.runtime.infer(ids, lengths)
    for number, length in enumerate(lengths):
        for output, array in outputs.items():
            if f"{output}.{number}" in expected:
                row = array[number, :length] if array.ndim == 3 else array[number]
                np.testing.assert_allclose(row, np.squeeze(expected[f"{output}.{number}"]), rtol=0, atol=1e-4)


def test_no_package_of_the_exporters_is_needed(portable: Portable, tmp_path: Path) -> None:
    folders = [
        str(lay_out(portable(name), layout, tmp_path / name, place="onnx"))
        for name, layout in {"t5": "apart", "llama": "one", "whisper": "merged", "bert": "plain"}.items()
    ]
    absent = ("torch", "onnx", "onnxscript", "onnx_ir", "safetensors", "transformers")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import txport; [*map(txport.load, {folders!r})]"
    subprocess.run([sys.executable, "-c", code], check=True)
