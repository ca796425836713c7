"""A quantised bundle that costs too much gets wider forms where that helps, and only there."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import txport
from recipes.g2p_en.tokenizer import spelling_tokenizer
from tests.tiny import VOCABULARY, tiny_config, tiny_model
from txport import runtimes
from txport.bundles.bundle import Bundle
from txport.bundles.forms import INVARIANT, PLAIN, Form, blocks_of, with_columns
from txport.bundles.manifest import AUTO_LIMIT, Manifest
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.cli import cli, main
from txport.errors import ParityError, UnsupportedError
from txport.models import ops
from txport.models.architectures.transformer import Transformer
from txport.proof import fallback
from txport.proof.fallback import fall_back, forms_of
from txport.proof.few_bits import costs
from txport.proof.few_bits.costs import Matrix, Option, choose_options, measure_costs
from txport.proof.few_bits.loss import Loss, divergence_of, outputs_of, trial_of, usual_aim
from txport.proof.proven import write
from txport.search.scoring import logits

LAYER = 1
CULPRIT = f"decoder.{LAYER}.feed_forward.inner.weight"
OUTLIER = 3e4
QUANTISED = (nn.Linear, nn.Embedding)
QUERY = "decoder.0.attention.query.weight"
COLUMNS = with_columns((1, 2))
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
    kept = manifest.kept_in_fp32
    assert any(CULPRIT in line and line.endswith(", and again") for line in told)
    assert manifest.loss["share"] <= 0.01 < kept["loss_before"]
    assert kept["divergence"] < kept["divergence_before"]
    assert manifest.parity["verdict"] == "pass"
    assert CULPRIT in kept["kept"]
    assert manifest.forms[CULPRIT] == PLAIN
    assert all(manifest.forms[name].describe() == form for name, form in kept["wider"].items())
    assert sum(form != PLAIN for form in manifest.forms.values()) > len(manifest.forms) / 2
    assert kept["bytes"] > kept["bytes_before"]
    assert kept["limit"] == AUTO_LIMIT
    assert 0 < kept["share"] <= AUTO_LIMIT
    assert kept["share"] == held_in_fp32(bundle, load_checkpoint(str(spoilt)).model)
    assert f"{how['precision']} ({100 * kept['share']:.3g} % of its weights in fp32)," in inspected(bundle)


@pytest.mark.usefixtures("few_cases")
def test_a_bundle_that_holds_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    bundle = txport.export(checkpoint, tmp_path / "out", target="cpu", precision="int8", auto=True, max_loss=0.1)
    assert bundle.manifest.kept_in_fp32 == {}
    assert PLAIN not in bundle.manifest.forms.values()
    assert "precision: int8, opset" in inspected(bundle)


@pytest.mark.usefixtures("few_cases")
def test_a_loss_that_remains_too_large_within_the_limit_is_an_error(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--target", "cpu", "--precision", "int8", "--auto", "--auto-limit", "0.03", "--max-loss", "0"]
    with pytest.raises(SystemExit, match="1"):
        main(["export", str(spoilt), str(tmp_path / "out"), *how])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(r"the export of toy loses 0\.\d+ with (0|[0-2]\.\d+) % of its weights in fp32, ", lines[0])
    for said in (
        f"the limit being 3 %, and the aim is 0; what costs most: {CULPRIT} (",
        "export with --precision fp32, with a higher limit, --auto-limit SHARE, or with a higher aim, --max-loss SHARE",
    ):
        assert said in lines[0]
    assert not (tmp_path / "out").exists()


def option(form: Form, cost: float, price: float) -> Option:
    return Option(form, cost, 1, price)


def matrix(name: str, size: int, *options: Option) -> Matrix:
    return Matrix((name,), size, options)


def planted() -> list[Matrix]:
    """One matrix that columns in fp32 help, one that only fp32 helps, and one that costs little."""
    return [
        matrix(QUERY, 10, option(INVARIANT, 8, 1), option(COLUMNS, 1, 2), option(PLAIN, 0, 5)),
        matrix(OUTER, 10, option(INVARIANT, 5.5, 1), option(COLUMNS, 4, 2), option(PLAIN, 0, 5)),
        matrix(INNER, 30, option(INVARIANT, 0.1, 1), option(COLUMNS, 0.05, 2), option(PLAIN, 0, 5)),
    ]


@pytest.mark.parametrize(
    ("aim", "forms"),
    [
        (20, [INVARIANT, INVARIANT, INVARIANT]),
        (7.5, [COLUMNS, INVARIANT, INVARIANT]),
        (1.5, [COLUMNS, PLAIN, INVARIANT]),
        (0.5, [PLAIN, PLAIN, INVARIANT]),
        (0.0, [PLAIN, PLAIN, PLAIN]),
    ],
)
def test_the_form_that_saves_most_for_its_price_is_next(aim: float, forms: list[Form]) -> None:
    assert [each.form for each in choose_options(planted(), aim, lambda _: True)] == forms


@pytest.mark.parametrize(
    ("worth", "forms"),
    [
        (0.0, [COLUMNS, COLUMNS, COLUMNS]),
        (0.5, [COLUMNS, COLUMNS, INVARIANT]),
        (1.0, [COLUMNS, INVARIANT, INVARIANT]),
        (4.0, [INVARIANT, INVARIANT, INVARIANT]),
    ],
)
def test_a_form_that_does_not_fit_or_is_not_worth_its_price_gives_way(worth: float, forms: list[Form]) -> None:
    """The first step saves 7 of 13.6 parts for 1 of 3 of the price, the second 1.5 of 6.6 for 1 of 4."""
    found = choose_options(planted(), 0.0, lambda forms: PLAIN not in forms, worth)
    assert [each.form for each in found] == forms


@pytest.mark.parametrize(
    ("losses", "limit", "max_loss", "written"),
    [
        ([0.1], 0.5, 0.15, [[COLUMNS, INVARIANT, INVARIANT]]),
        ([0.3, 0.1], 0.5, 0.15, [[COLUMNS, INVARIANT, INVARIANT], [COLUMNS, PLAIN, INVARIANT]]),
        ([0.3, 0.3], 0.1, 0.15, [[COLUMNS, INVARIANT, INVARIANT], [COLUMNS, COLUMNS, COLUMNS]]),
        ([0.3], 0.1, None, [[COLUMNS, INVARIANT, INVARIANT]]),
    ],
)
def test_forms_become_wider_until_the_loss_is_small_or_the_limit_is_reached(
    losses: list[float],
    limit: float,
    max_loss: float | None,
    written: list[list[Form]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a limit of the user's, no step is taken that isn't worth its price, and the last bundle is the result."""
    model = tiny_model(tiny_config())
    given = {"name": "toy", "sha256": "0" * 64}
    about = {"architecture": "transformer", "config": model.config.to_dict(), "facts": model.facts}
    how: dict[str, Any] = {"target": "cpu", "precision": "int8", "opset": 18, "checkpoint": given, "tools": {}}
    bundle = Bundle(tmp_path, Manifest(**about, **how))
    asked: list[dict[str, Form]] = []

    def write(_: Checkpoint, path: Path, chosen: dict[str, Form]) -> Bundle:
        (path / "onnx").mkdir()
        asked.append(chosen)
        return bundle

    record = {"measure": "next tokens"}
    measured = [Loss({"share": share, **record}, False, usual_aim(model.facts) * share / 0.15) for share in losses]
    before = Loss({"share": 0.2, **record}, False, usual_aim(model.facts) * 2)
    monkeypatch.setattr(fallback, "measure_loss", lambda *_: [before, *measured][len(asked)])
    monkeypatch.setattr(fallback, "measure_costs", lambda *_: planted())
    monkeypatch.setattr(fallback, "trial_of", lambda *_: None)
    monkeypatch.setattr(fallback.runtimes, "load", lambda *_, **__: None)
    monkeypatch.setattr(fallback, "write", write)
    (tmp_path / "onnx").mkdir()
    toy = Checkpoint("toy", model, given["sha256"])
    bounds: dict[str, Any] = {"max_loss": max_loss, "limit": limit}
    with pytest.raises(ParityError, match="the limit being") if max_loss and losses[-1] > max_loss else nullcontext():
        kept = fall_back(bundle, toy, print, **bounds).manifest.kept_in_fp32
        last = dict(zip((QUERY, OUTER, INNER), written[-1], strict=True))
        assert kept["kept"] == [name for name, form in last.items() if form == PLAIN]
        assert kept["wider"] == {name: form.describe() for name, form in last.items() if form == COLUMNS}
        figures = (kept["loss_before"], kept["divergence_before"], kept["divergence"])
        assert figures == (0.2, before.divergence, measured[-1].divergence)
        assert kept["share"] == (0.2 if OUTER in kept["kept"] else 0)
    names = (QUERY, OUTER, INNER)
    assert asked == [
        {name: form for name, form in zip(names, forms, strict=True) if form != INVARIANT} for forms in written
    ]


def test_at_most_half_of_the_weights_get_more_bits() -> None:
    """int4 of which most is in 8 bits is not int4."""
    four = blocks_of(4, 32)
    eight = option(blocks_of(8, 32), 0.5, 2)
    matrices = [matrix(name, 10, option(four, 1, 1), eight) for name in (QUERY, OUTER, INNER, "projection.weight")]
    found = choose_options(matrices, 0.0, partial(fallback._fits, matrices, 0.25))
    assert [each.form for each in found] == [eight.form, eight.form, four, four]


def test_a_tied_weight_has_its_form_under_all_of_its_names() -> None:
    model = tiny_model(tiny_config(tied="all"))
    table = matrix("projection.weight", 10, option(INVARIANT, 1, 1), option(PLAIN, 0, 2))
    names = ("projection.weight", "source_embedding.tokens.weight", "target_embedding.tokens.weight")
    assert forms_of(model, [table], [table.options[1]]) == dict.fromkeys(names, PLAIN)


def test_attention_in_blocks_of_queries_has_the_same_costs(
    spoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are computed again for gradients, which must not count their layers twice.

    Activations are not rounded here: a value between two steps may be rounded to the other one.
    """
    monkeypatch.setattr(costs, "round_activations", lambda x, _form: x)
    checkpoint = load_checkpoint(str(spoilt))
    bundle = write(checkpoint, tmp_path, target="cpu", precision="int8")
    trial = trial_of(bundle, checkpoint, runtimes.load("ort", bundle))
    whole = measure_costs(bundle, checkpoint, trial)
    monkeypatch.setattr(ops, "MOST_SCORES", 8)
    for one, other in zip(whole, measure_costs(bundle, checkpoint, trial), strict=True):
        assert [each.form for each in one.options] == [each.form for each in other.options]
        found = ([option.cost for option in each.options] for each in (one, other))
        np.testing.assert_allclose(*found, rtol=1e-3)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_costs_add_up_and_the_planted_layer_costs_most(spoilt: Path, tmp_path: Path, precision: str) -> None:
    """What all matrices cost together is about the sum of what each costs; a wider form costs less."""
    checkpoint = load_checkpoint(str(spoilt))
    bundle = write(checkpoint, tmp_path, target="cpu", precision=precision)
    runtime = runtimes.load("ort", bundle)
    trial = trial_of(bundle, checkpoint, runtime)
    matrices = measure_costs(bundle, checkpoint, trial)
    layers = [each for each in matrices if each.weights != ("projection.weight",)]
    assert max(layers, key=lambda each: each.cost).weights == (CULPRIT,)
    exact = outputs_of(checkpoint.model, trial)
    together = divergence_of(checkpoint.facts, exact, logits(runtime, trial.sources, trial.targets, checkpoint.facts))
    assert together / 3 < sum(each.cost for each in matrices) < together * 3
    for each in matrices:
        costs = [option.cost for option in each.options]
        assert costs[-1] == 0
        assert len(costs) == 1 or costs[0] > costs[-1]
    first = exact[0].copy()
    assert np.array_equal(first, outputs_of(checkpoint.model, trial)[0])  # nothing is left in the model


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
