"""What is found for a text in a batch-invariant bundle is the same, to the last bit, whatever else is in its batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.tiny import tiny_config, tiny_model
from txport import runtimes
from txport.exporters.check import operators
from txport.models.bundle import INVARIANT, MANIFEST, Bundle, write_json
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.errors import UnsupportedError
from txport.models.ports import ENCODER, STEP
from txport.proof.bisect import bisect
from txport.proof.parity import check
from txport.proof.verify import BATCH, verify
from txport.runtimes.fused import FusedRuntime
from txport.search.continuous import Hall
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.search.scoring import logits

LONGEST = 23  # no multiple of what the kernels sum over at a time, so that the longest sources can't be padded
KINDS: dict[str, dict[str, Any]] = {
    "all tied": {},
    "post, learned, untied": {
        "norm": "post",
        "positions": "learned",
        "tied": "none",
        "activation": "gelu",
        "feed_forward": 64,  # so that int4 could take blocks of 64, whose kernels sum a last odd row otherwise
    },
}
PRECISIONS = ["int8", "int4"]
SEARCHES: list[dict[str, Any]] = [{}, {"scores": False}, {"beams": 3, "nbest": 3}]
LENGTHS = {"min_new_tokens": 6, "max_new_tokens": 12}
OTHERS = [1, 2, 6, 30]


@pytest.fixture(scope="module", params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "toy"
    save_checkpoint(folder, tiny_model(tiny_config(max_length=LONGEST, **KINDS[request.param])))
    return folder


@pytest.fixture(scope="module", params=PRECISIONS)
def invariant(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("bundles") / "toy"
    return txport.export(source, out, target="cpu", precision=request.param, batch_invariant=True)  # with its proof


def sources(count: int = 31) -> list[list[int]]:
    """Of every length that the model takes, in no order."""
    rng = np.random.default_rng(5)
    lengths = rng.permutation(np.arange(count) % LONGEST + 1)
    return [[*rng.integers(4, 13, length - 1).tolist(), 2] for length in lengths]


def opened(bundle: Bundle) -> FusedRuntime:
    runtime = runtimes.load("ort", bundle)
    assert isinstance(runtime, FusedRuntime)
    return runtime


def found(runtime: FusedRuntime, texts: list[list[int]], **options: Any) -> list[str]:
    """All that is found for each text, as Python writes it: to the last bit, and no score (NaN) equals none."""
    return [repr(each) for each in generate(runtime, texts, runtime.config, SearchOptions(**LENGTHS, **options))]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_is_found_for_a_text_is_the_same_beside_any_others(invariant: Bundle, options: dict[str, Any]) -> None:
    texts, runtime = sources(), opened(invariant)
    alone = [found(runtime, [text], **options)[0] for text in texts]
    for others in OTHERS:
        for start in range(0, len(texts), others + 1):
            part = slice(start, start + others + 1)
            assert found(runtime, texts[part], **options) == alone[part]
    order = np.random.default_rng(6).permutation(len(texts))
    assert found(runtime, [texts[at] for at in order], **options) == [alone[at] for at in order]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_is_found_is_the_same_in_continuous_batches(invariant: Bundle, options: dict[str, Any]) -> None:
    """In beam search as in other continuous batches: from the first step on, these have all beams."""
    texts, runtime = sources(), opened(invariant)

    def continuous(texts: list[list[int]], places: int) -> list[str]:
        search = SearchOptions(**LENGTHS, **options)
        found = Hall(runtime, [(text, ()) for text in texts], runtime.config, search, places).run()
        return [repr(each) for each in found]

    alone = [continuous([text], 1)[0] for text in texts]
    assert continuous(texts, 2) == continuous(texts, 7) == alone
    if "beams" not in options:
        assert alone == found(runtime, texts, **options)


def test_logits_are_the_same_beside_any_others(invariant: Bundle) -> None:
    assert differing(invariant) == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_without_the_option_logits_depend_on_the_others(tmp_path: Path, precision: str) -> None:
    """Else nothing above could fail, nor the check of it where a bundle runs."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=LONGEST)))
    usual = txport.export(tmp_path / "toy", tmp_path / "out", target="cpu", precision=precision, rows=8)
    assert not usual.manifest.batch_invariant
    assert differing(usual) > 0
    assert BATCH not in {check.name for check in verify(usual.path).checks}
    edited = json.loads((usual.path / MANIFEST).read_text())
    edited["quantization"]["encoder.0.attention.out.weight"] = INVARIANT
    write_json(usual.path / MANIFEST, edited)
    (check,) = (check for check in verify(usual.path).checks if check.verdict == "fail")
    assert check.name == BATCH
    assert "alone has other logits from step " in check.detail


def differing(bundle: Bundle) -> int:
    """How many texts have other logits before given targets in some batch than alone."""
    runtime, config, texts = opened(bundle), bundle.manifest.config, sources()
    targets = [[4 + len(text) % 8, 7, 9, 5, 2] for text in texts]
    alone = [logits(runtime, [text], [target], config)[0] for text, target in zip(texts, targets, strict=True)]
    other = set()
    for size in (each + 1 for each in OTHERS):
        for start in range(0, len(texts), size):
            part = slice(start, start + size)
            for at, values in enumerate(logits(runtime, texts[part], targets[part], config), start):
                if not np.array_equal(values, alone[at]):
                    other.add(at)
    return len(other)


def test_every_matrix_has_the_form_and_no_operator_quantises_all_rows_at_once(invariant: Bundle) -> None:
    config = invariant.manifest.config
    forms = set(invariant.manifest.quantization.values())
    blocks = {"4-bit blocks of 32", "4-bit blocks of 16"}
    assert INVARIANT in forms
    assert forms <= {INVARIANT} | (blocks if invariant.manifest.precision == "int4" else set())
    products = 0
    for role in (ENCODER, STEP):
        counts = operators(invariant.file(role))
        assert not {"DynamicQuantizeLinear", "com.microsoft.DynamicQuantizeMatMul", "Gemm"} & set(counts)
        products += counts.get("com.microsoft.QGemm", 0) + counts.get("com.microsoft.MatMulNBits", 0)
    assert products == 6 * config.encoder_layers + 8 * config.decoder_layers + 1


def test_parity_holds_and_bisect_finds_nothing(invariant: Bundle, source: Path) -> None:
    checkpoint = load_checkpoint(str(source))
    (promise,) = (check for check in verify(invariant.path).checks if check.name == BATCH)
    assert (promise.verdict, promise.detail) == ("pass", "4 rows are the same alone and together")
    assert check(invariant, checkpoint, {"ort": "cpu"}).passed
    assert bisect(invariant, checkpoint) is None


def test_what_cannot_be_invariant_is_refused(source: Path, tmp_path: Path) -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("portable fp32 quantises none", {}),
        ("cpu fp32 quantises none", {"target": "cpu"}),
        ("leave out rows, got 1", {"target": "cpu", "precision": "int4", "rows": 1}),
        ("leave out rows, got 8", {"target": "cpu", "precision": "int8", "rows": 8}),
        ("leave out auto", {"target": "cpu", "precision": "int8", "auto": True}),
    ]
    for message, chosen in refused:
        with pytest.raises(UnsupportedError, match=message):
            txport.export(source, tmp_path / "out", batch_invariant=True, **chosen)
    assert not (tmp_path / "out").exists()
