"""Parts of an architecture's own need no word elsewhere: export, few bits and bisect take them as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.covering import in_turn
from tests.models.architectures.owned import beside_the_others
from tests.proof.faults import Edit, scaled
from tests.tiny import edit_graph
from txport.bundles.bundle import Bundle
from txport.bundles.forms import PLAIN
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from txport.errors import UnsupportedError
from txport.proof.against.hold import hold_against
from txport.proof.bisect import culprit as module
from txport.proof.bisect.culprit import bisect
from txport.proof.proven import prove, write
from txport.targets.ports import DECODER, STEP

Array = NDArray[Any]
PLANS = [("portable", "fp32"), ("cpu", "fp32"), ("cpu", "int8"), ("cuda", "fp16"), ("cuda", "int8")]
KINDS = ("alibi", "experts", "gate", "plain", "scale-norm", "parallel")


@pytest.fixture(scope="module", autouse=True)
def own_architecture() -> Iterator[None]:
    with beside_the_others():
        yield


def checkpoint_of(kind: str) -> Checkpoint:
    return load_checkpoint(f"preset:mine-{kind}-tiny")


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Bundle]:
    made: dict[tuple[str, str, str], Bundle] = {}

    def bundle(kind: str, target: str, precision: str) -> Bundle:
        key = (kind, target, precision)
        if key not in made:
            folder = tmp_path_factory.mktemp("mine")
            made[key] = write(checkpoint_of(kind), folder, target=target, precision=precision)
        return made[key]

    return bundle


@pytest.mark.parametrize(("kind", "plan"), in_turn(KINDS, PLANS))
def test_a_part_of_one_s_own_exports(kind: str, plan: tuple[str, str], bundle_of: Callable[..., Bundle]) -> None:
    bundle, report = prove(bundle_of(kind, *plan), checkpoint_of(kind))
    assert report.passed, report.failures()
    assert bundle.manifest.parity["verdict"] == "pass"


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_linear_layers_without_a_tag_stay_in_fp32_and_are_counted(
    precision: str, bundle_of: Callable[..., Bundle]
) -> None:
    forms = bundle_of("plain", "cpu", precision).manifest.forms
    plain = {name for name, form in forms.items() if form == PLAIN}
    assert plain == {f"decoder.{layer}.feed_forward.{at}.weight" for layer in (0, 1) for at in (0, 3)}
    assert len(forms) > len(plain)


def changed(part: str, change: Callable[[Array], Array]) -> Edit:
    """Change the first initializer with this in its name."""

    def edit(model: ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if part in each.name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))

    return edit


def uneven(values: Array) -> Array:
    factors: Array = np.linspace(0.9, 1.1, values.size, dtype=values.dtype)
    return values * factors


FAULTS: dict[str, tuple[str, Edit, str, str]] = {
    "two slopes exchanged": ("alibi", changed("slopes", lambda x: x[[1, 0, 2, 3]]), "Alibi", "2 of its 4 values"),
    "slopes reversed": ("alibi", changed("slopes", lambda x: x[::-1].copy()), "Alibi", "4 of its 4 values"),
    "a slope of 0": ("alibi", changed("slopes", lambda x: x * (np.arange(4) > 0)[:, None, None]), "Alibi", "is 0"),
    "a wrong parameter": (
        "gate",
        changed("gamma", uneven),
        "Gate",
        "64 of its 64 values",
    ),
    "a sigmoid of too much": ("gate", scaled("Sigmoid", 0, 1.05), "Gate", "what it gives is not"),
    "a wrong length": ("scale-norm", changed("norm.length", lambda x: x * 1.01), "ScaleNorm", "1.01 times"),
    "a scaled share": (
        "experts",
        scaled("ReduceSum", 0, 1.05),
        "Experts",
        "second linear layer gives are scaled by 0.952381",
    ),
    "a wrong router": ("experts", changed("router", lambda x: x * 1.1), "router", "1.1 times the checkpoint's"),
    "a plain linear layer": (
        "plain",
        changed("feed_forward.0.weight", lambda x: x * 1.1),
        "feed-forward 0",
        "1.1 times",
    ),
}


@pytest.mark.parametrize(("fault", "plan"), in_turn(FAULTS, PLANS[:3]))
def test_a_fault_in_a_part_of_one_s_own_is_named(
    fault: str,
    plan: tuple[str, str],
    bundle_of: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "origin", lambda *_: "")  # exporting again has tests of its own
    kind, edit, part, what = FAULTS[fault]
    sound = bundle_of(kind, *plan)
    folder = Path(shutil.copytree(sound.path, tmp_path / "bundle"))
    culprit = bisect(edit_graph(folder, STEP if plan[0] == "cpu" else DECODER, edit), checkpoint_of(kind))
    assert culprit is not None
    assert part in culprit.where
    assert what in culprit.what


def test_a_tensor_that_is_not_registered_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of("alibi")
    layers: Any = checkpoint.model.decoder
    for layer in layers:
        bias = layer.attention.core.bias
        slopes = bias.slopes
        del bias.slopes
        bias.slopes = slopes.clone()
    with pytest.raises(
        UnsupportedError, match=r"^a constant of part Alibi of the shape \(4, 1, 1\) is neither a parameter nor"
    ):
        write(checkpoint, tmp_path, target="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_bundle_has_no_culprit(kind: str, bundle_of: Callable[..., Bundle]) -> None:
    assert bisect(bundle_of(kind, "cpu", "int8"), checkpoint_of(kind)) is None


ORIGINAL = """
import torch
from txport.checkpoints.checkpoint import load_checkpoint

def original():
    return load_checkpoint("preset:mine-{kind}-tiny").model

def other():
    module = original()
    for layer in module.decoder:
        layer.attention.core.bias.slopes = layer.attention.core.bias.slopes.flip(0)
    return module

def run(module, ids):
    places = torch.arange(ids.shape[1])[None].expand_as(ids)
    return module.extend(ids, torch.ones_like(ids).bool(), places, module.empty_state(len(ids))).logits
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_one_s_own_is_compared_with_an_original(kind: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "import", checkpoint_of(kind).model)
    file = tmp_path / "model.py"
    file.write_text(ORIGINAL.format(kind=kind), encoding="utf-8")
    found = hold_against(str(tmp_path / "import"), f"{file}:original", trust_code=True)
    assert found.passed, list(found.lines())
    if kind == "alibi":
        found = hold_against(str(tmp_path / "import"), f"{file}:other", trust_code=True)
        assert found.parting is not None
        assert (found.parting.where, found.parting.kind) == ("decoder layer 0, self-attention", "position")
        assert "the heads [0, 1, 2, 3] have each other's position bias, in reverse order" in found.parting.what
