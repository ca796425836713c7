"""A quantised bundle that differs keeps matrices in fp32 where that helps, and only there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.tiny import VOCABULARY, tiny_config, tiny_model
from txport.bundles.bundle import Bundle
from txport.bundles.forms import INVARIANT, PLAIN, Stored
from txport.bundles.manifest import AUTO_LIMIT, Manifest
from txport.cli import cli, main
from txport.errors import ParityError, UnsupportedError
from txport.models.architectures.transformer import Transformer
from txport.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.proof import fallback
from txport.proof.fallback import aliases, fall_back_to_fp32, kept_share, worst_matrices

LAYER = 1
OUTLIER = 3e4
QUANTISED = (nn.Linear, nn.Embedding)
QUERY, KEY, VALUE = (f"decoder.0.attention.{name}.weight" for name in ("query", "key", "value"))
OUTER, INNER = (f"decoder.0.feed_forward.{name}.weight" for name in ("outer", "inner"))


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One channel of one norm is huge, and nobody reads it; but it leaves no step of 8 bits to the others."""
    config = tiny_config(d_model=32, feed_forward=64)
    model = tiny_model(config)
    layer = model.decoder[LAYER]
    with torch.no_grad():
        layer.feed_forward_residual.norm.weight[3] = OUTLIER
        layer.feed_forward.inner.weight[:, 3] = 0.0
    folder = tmp_path_factory.mktemp("spoilt") / "toy"
    save_checkpoint(folder, model, spelling_tokenizer(VOCABULARY))
    return folder


def held_in_fp32(bundle: Bundle, model: Transformer) -> float:
    """The share of the weights of linear maps and embeddings that a bundle says it holds in fp32, tied ones once."""
    owners = ((name, module) for name, module in model.named_modules() if isinstance(module, QUANTISED))
    sizes = {id(module.weight): (f"{name}.weight", module.weight.numel()) for name, module in owners}
    plain = {name for name, form in bundle.manifest.forms.items() if form == PLAIN}
    return sum(size for name, size in sizes.values() if name in plain) / sum(size for _, size in sizes.values())


def inspected(bundle: Bundle) -> str:
    return CliRunner().invoke(cli, ["inspect", str(bundle.path), "--brief"]).output


def test_the_matrix_at_fault_is_kept_and_the_loss_is_as_small_as_asked(spoilt: Path, tmp_path: Path) -> None:
    told: list[str] = []
    how: dict[str, Any] = {"precision": "int8", "auto": True, "max_loss": 0.01}
    bundle = txport.export(spoilt, tmp_path / "out", target="cpu", progress=told.append, **how)
    manifest = bundle.manifest
    culprit = f"decoder.{LAYER}.feed_forward.inner.weight"
    assert any(line.endswith(f"; {culprit} in fp32, and again") for line in told)
    assert manifest.loss["share"] <= 0.01 < manifest.kept_in_fp32["loss_before"]
    assert manifest.parity["verdict"] == "pass"
    assert manifest.kept_in_fp32["kept"][0] == culprit
    assert manifest.forms[culprit] == PLAIN
    assert sum(form != PLAIN for form in manifest.forms.values()) > len(manifest.forms) / 2
    assert manifest.kept_in_fp32["bytes"] > manifest.kept_in_fp32["bytes_before"]
    assert manifest.kept_in_fp32["limit"] == AUTO_LIMIT
    assert 0 < manifest.kept_in_fp32["share"] <= AUTO_LIMIT
    assert manifest.kept_in_fp32["share"] == held_in_fp32(bundle, load_checkpoint(str(spoilt)).model)
    assert f"{how['precision']} ({100 * manifest.kept_in_fp32['share']:.3g} % of its weights in fp32)," in inspected(
        bundle
    )
    assert worst_matrices(bundle, load_checkpoint(str(spoilt)))[0] != culprit


@pytest.mark.usefixtures("few_cases")
def test_a_bundle_that_holds_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    bundle = txport.export(checkpoint, tmp_path / "out", target="cpu", precision="int8", auto=True)
    assert bundle.manifest.kept_in_fp32 == {}
    assert PLAIN not in bundle.manifest.forms.values()
    assert "precision: int8, opset" in inspected(bundle)


@pytest.mark.usefixtures("few_cases")
def test_what_would_no_longer_be_int8_is_refused_before_it_is_written(
    spoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fallback, "write", lambda *_, **__: pytest.fail("a bundle beyond the limit was written"))
    how = ["--target", "cpu", "--precision", "int8", "--auto", "--auto-limit", "0.03", "--max-loss", "0.01"]
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(spoilt), str(tmp_path / "out"), *how])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for said in (
        "the export of toy loses 0.02",
        " with 0 % of its weights in fp32, the aim is 0.01; ",
        f"keeping what errs most, decoder.{LAYER}.feed_forward.inner.weight (then ",
        "), would make it 4.92 %, above the limit of 3 %: ",
        "export with --precision fp32, with a higher limit, --auto-limit SHARE, or with a higher aim, --max-loss SHARE",
    ):
        assert said in lines[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("limit", "written", "refused"),
    [
        (1.0, [[QUERY], [QUERY, OUTER], [QUERY, OUTER, INNER, "projection.weight"]], False),
        (0.99, [[QUERY], [QUERY, OUTER], [QUERY, OUTER, INNER]], True),
        (0.51, [[QUERY]], True),
        (0.0, [], True),
    ],
)
def test_as_much_is_kept_as_the_limit_lets_and_no_more(
    limit: float, written: list[list[str]], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix, then as many again each time, or as many as fit; here nothing helps."""
    model = tiny_model(tiny_config())
    packs = ((QUERY, KEY, VALUE), (OUTER,), (INNER,), ("projection.weight",))
    table = {f"{names[0]}.stored": Stored(names, INVARIANT, f"{names[0]}.scale") for names in packs}
    given = {"name": "toy", "sha256": "0" * 64}
    manifest = Manifest(
        target="cpu",
        precision="int8",
        opset=18,
        architecture="transformer",
        config=model.config.to_dict(),
        facts=model.facts,
        checkpoint=given,
        tools={},
        weights=table,
    )
    asked: list[set[str]] = []

    def write(_: Checkpoint, path: Path, keep: set[str]) -> Bundle:
        (path / "onnx").mkdir()
        asked.append(keep)
        return Bundle(path, manifest)

    differs: Any = SimpleNamespace(about={"loss": {"share": 0.5}})
    costly: Any = SimpleNamespace(record={"share": 0.5})
    free: Any = SimpleNamespace(record={"share": 0.0})
    monkeypatch.setattr(
        fallback, "measure_loss", lambda *_: free if len(asked) == len(written) and not refused else costly
    )
    monkeypatch.setattr(fallback.runtimes, "load", lambda *_, **__: None)
    monkeypatch.setattr(fallback, "worst_matrices", lambda *_: [QUERY, OUTER, INNER, "projection.weight"])
    monkeypatch.setattr(fallback, "write", write)
    monkeypatch.setattr(fallback, "prove", lambda bundle, _: (bundle, differs))
    (tmp_path / "onnx").mkdir()
    toy = Checkpoint("toy", model, given["sha256"])
    bundle = Bundle(tmp_path, manifest)
    with pytest.raises(ParityError, match="above the limit") if refused else contextlib.nullcontext():
        kept = fall_back_to_fp32(bundle, differs, toy, print, aim=0.1, limit=limit)[0].manifest.kept_in_fp32
        assert (kept["kept"], kept["share"], kept["limit"]) == (written[-1], 1.0, limit)
    assert asked == [aliases(model, names) for names in written]


def test_a_share_counts_tied_tensors_once_and_what_is_packed_together() -> None:
    model = tiny_model(tiny_config(tied="all"))
    table = len(VOCABULARY) * 16
    square = 16 * 16
    names = [("projection.weight",), (QUERY, KEY, VALUE), ("source_embedding.tokens.weight",)]
    every = table + 3 * square
    assert kept_share(model, names, []) == 0
    assert kept_share(model, names, [QUERY]) == 3 * square / every
    assert kept_share(model, names, ["target_embedding.tokens.weight"]) == table / every
    assert kept_share(model, names, [QUERY, "projection.weight"]) == 1


@pytest.mark.parametrize("limit", [-0.1, 1.5, float("nan")])
def test_a_limit_is_a_share(checkpoint: Path, tmp_path: Path, limit: float) -> None:
    how: dict[str, Any] = {"target": "cpu", "precision": "int8", "auto": True}
    with pytest.raises(UnsupportedError, match=r"auto_limit must lie in 0 to 0\.5, got"):
        txport.export(checkpoint, tmp_path / "out", auto_limit=limit, **how)


def test_a_limit_on_nothing_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="auto_limit needs auto"):
        txport.export(checkpoint, tmp_path / "out", target="cpu", precision="int8", auto_limit=0.5)


@pytest.mark.parametrize("how", [{}, {"target": "cpu"}, {"precision": "fp16"}])
def test_there_is_nothing_to_keep_where_nothing_is_quantised(checkpoint: Path, tmp_path: Path, how: Any) -> None:
    with pytest.raises(UnsupportedError, match="auto keeps weights of int8 and int4 in fp32, "):
        txport.export(checkpoint, tmp_path / "out", auto=True, **how)


def test_a_tied_weight_is_kept_under_all_of_its_names() -> None:
    model = tiny_model(tiny_config(tied="all"))
    assert aliases(model, ["projection.weight"]) == {
        "projection.weight",
        "source_embedding.tokens.weight",
        "target_embedding.tokens.weight",
    }
