"""What is found for a text is the same, to the last bit, whatever else is in its batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txport
from tests.tiny import tiny_config, tiny_model
from txport import runtimes
from txport.bundles.bundle import Bundle, seal
from txport.bundles.manifest import MANIFEST
from txport.bundles.ports import ENCODER, STEP
from txport.exporters.check import operators
from txport.exporters.export import export_graphs
from txport.exporters.quantize import INVARIANT, PLAIN
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.proof.bisect import bisect
from txport.proof.parity import check
from txport.proof.verify import BATCH, Check, verify
from txport.runtimes import portable
from txport.runtimes.base import ContinuousRuntime, GraphRuntime
from txport.search.continuous import Hall
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.search.scoring import logits
from txport.system.documents import write_json

LONGEST = 23  # no multiple of what the kernels sum over at a time
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
QUANTISED = ["int8", "int4"]
OFFERED = [("cpu", "fp32"), ("cpu", "int8"), ("cpu", "int4"), ("portable", "fp32")]
CONTINUOUS = [each for each in OFFERED if each[0] == "cpu"]
SEARCHES: list[dict[str, Any]] = [{}, {"scores": False}, {"beams": 3, "nbest": 3}]
LENGTHS = {"min_new_tokens": 6, "max_new_tokens": 12}
OTHERS = [1, 2, 6, 30]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module", params=OFFERED, ids=" ".join)
def bundle(request: pytest.FixtureRequest, kind: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    target, precision = request.param
    folder = tmp_path_factory.mktemp("toys")
    save_checkpoint(folder / "toy", tiny_model(tiny_config(max_length=LONGEST, **kind)))
    return txport.export(folder / "toy", folder / "out", target=target, precision=precision)  # with its proof


def sources(bundle: Bundle, count: int = 31) -> list[list[int]]:
    """Of every length that the model takes, in no order."""
    rng, longest = np.random.default_rng(5), bundle.manifest.config.max_length
    lengths = rng.permutation(np.arange(count) % longest + 1)
    return [[*rng.integers(4, 13, length - 1).tolist(), 2] for length in lengths]


def opened(bundle: Bundle) -> GraphRuntime:
    return runtimes.load("ort", bundle)


def found(bundle: Bundle, runtime: GraphRuntime, texts: list[list[int]], **options: Any) -> list[str]:
    """All that is found for each text, as Python writes it: to the last bit, and no score (NaN) equals none."""
    search = SearchOptions(**LENGTHS, **options)
    return [repr(each) for each in generate(runtime, texts, bundle.manifest.config, search)]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_is_found_for_a_text_is_the_same_beside_any_others(bundle: Bundle, options: dict[str, Any]) -> None:
    texts, runtime = sources(bundle), opened(bundle)
    alone = [found(bundle, runtime, [text], **options)[0] for text in texts]
    for others in OTHERS:
        for start in range(0, len(texts), others + 1):
            part = slice(start, start + others + 1)
            assert found(bundle, runtime, texts[part], **options) == alone[part]
    order = np.random.default_rng(6).permutation(len(texts))
    assert found(bundle, runtime, [texts[at] for at in order], **options) == [alone[at] for at in order]


@pytest.mark.parametrize("bundle", CONTINUOUS, ids=" ".join, indirect=True)
@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_what_is_found_is_the_same_in_continuous_batches(bundle: Bundle, options: dict[str, Any]) -> None:
    """In beam search as in other continuous batches: from the first step on, these have all beams."""
    texts, runtime = sources(bundle), opened(bundle)
    assert isinstance(runtime, ContinuousRuntime)

    def continuous(texts: list[list[int]], places: int) -> list[str]:
        search = SearchOptions(**LENGTHS, **options)
        found = Hall(runtime, [(text, ()) for text in texts], bundle.manifest.config, search, places).run()
        return [repr(each) for each in found]

    alone = [continuous([text], 1)[0] for text in texts]
    assert continuous(texts, 2) == continuous(texts, 7) == alone
    if "beams" not in options:
        assert alone == found(bundle, runtime, texts, **options)


def test_logits_are_the_same_beside_any_others(bundle: Bundle) -> None:
    assert differing(bundle) == 0
    assert looked_at(bundle) == Check(BATCH, "pass", "4 rows are the same alone and together, to the last bit")


@pytest.mark.parametrize("precision", QUANTISED)
def test_matrices_that_stay_in_fp32_depend_on_no_others_either(precision: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=LONGEST)))
    checkpoint, out = load_checkpoint(str(tmp_path / "toy")), tmp_path / "out"
    out.mkdir()
    names = [name for name, _ in checkpoint.model.named_parameters() if "feed_forward" in name or "query" in name]
    bundle = seal(out, export_graphs(checkpoint, out, target="cpu", precision=precision, keep=names))
    assert {PLAIN, INVARIANT} <= set(bundle.manifest.quantization.values())
    assert differing(bundle) == 0


@pytest.mark.parametrize("precision", QUANTISED)
def test_with_kernels_for_some_rows_logits_depend_on_the_others(tmp_path: Path, precision: str) -> None:
    """Else nothing above could fail, nor the check of it where a bundle runs."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=LONGEST)))
    fast = txport.export(tmp_path / "toy", tmp_path / "out", target="cpu", precision=precision, rows=8)
    assert differing(fast) > 0
    assert looked_at(fast) == Check(BATCH, "not run", "kernels for 8 rows depend on the batch")
    edited = json.loads((fast.path / MANIFEST).read_text())
    edited["rows"] = None
    write_json(fast.path / MANIFEST, edited)
    check = looked_at(fast)
    assert check.verdict == "fail"
    assert "alone has other logits from step " in check.detail
    assert check.detail.endswith("; a bundle that was exported with --rows does not promise that they are the same")


@pytest.mark.parametrize(("precision", "dtype", "most"), [("fp32", "float32", 0), ("fp16", "float16", 2)])
def test_without_padding_logits_of_portable_bundles_depend_on_the_others(
    precision: str, dtype: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16 ONNX Runtime's sums also depend on where a row lies, which one text in hundreds shows."""
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(max_length=24)))
    bundle = txport.export(tmp_path / "toy", tmp_path / "out", precision=precision)
    assert differing(bundle, 124) <= most
    monkeypatch.setitem(portable.TOGETHER, dtype, 1)
    assert differing(bundle, 124) > most


def looked_at(bundle: Bundle) -> Check:
    (check,) = (check for check in verify(bundle.path).checks if check.name == BATCH)
    return check


def differing(bundle: Bundle, count: int = 31) -> int:
    """How many texts have other logits before given targets in some batch than alone."""
    runtime, config, texts = opened(bundle), bundle.manifest.config, sources(bundle, count)
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


@pytest.mark.parametrize("precision", QUANTISED)
def test_every_matrix_has_a_form_and_no_operator_quantises_all_rows_at_once(
    precision: str, kind: dict[str, Any], tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "toy", tiny_model(tiny_config(**kind)))
    bundle = txport.export(tmp_path / "toy", tmp_path / "out", target="cpu", precision=precision)
    config, forms = bundle.manifest.config, set(bundle.manifest.quantization.values())
    blocks = {"4-bit blocks of 32", "4-bit blocks of 16"}
    assert INVARIANT in forms
    assert forms <= {INVARIANT} | (blocks if precision == "int4" else set())
    products = 0
    for role in (ENCODER, STEP):
        counts = operators(bundle.file(role))
        assert not {"DynamicQuantizeLinear", "com.microsoft.DynamicQuantizeMatMul", "Gemm"} & set(counts)
        products += counts.get("com.microsoft.QGemm", 0) + counts.get("com.microsoft.MatMulNBits", 0)
    assert products == 6 * config.encoder_layers + 8 * config.decoder_layers + 1
    checkpoint = load_checkpoint(str(tmp_path / "toy"))
    assert check(bundle, checkpoint, {"ort": "cpu"}).passed
    assert bisect(bundle, checkpoint) is None
