"""The limits of a phase: what it reads and computes is what its weights say, on any target."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.seeded import bundle_of, saved
from tests.tiny import tiny_config, tiny_model, unproven
from txport.bench import bandwidth, profile, rounds
from txport.bench import measure as bench
from txport.bench.page import markdown
from txport.bench.sections import reached
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.models.architectures.llama import LlamaConfig

CONFIG = tiny_config(d_model=64, feed_forward=96)
PLAN = bench.Plan(batch=(2,), source=(4,), tokens=(5,), rounds=3, threads=1, starts=1, scenario=("phases", "limits"))
SHAPE: Any = {"vocab_size": 32, "d_model": 32, "heads": 2, "decoder_layers": 2, "feed_forward": 48}  # with few weights
SMALL = 4096  # bytes of biases, norms and constants of the graph, which a step reads beside its matrices


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("profile")
    save_checkpoint(folder / "toy", tiny_model(CONFIG))
    kinds = (("portable", "fp32"), ("cpu", "fp32"), ("cpu", "int8"))
    return {
        " ".join(each): unproven(folder / "toy", folder / "-".join(each), target=each[0], precision=each[1])
        for each in kinds
    }


@pytest.fixture(scope="module")
def result(bundles: dict[str, Bundle]) -> Any:
    found = bench.candidates([("toy", each) for each in bundles.values()], ("ort",))
    return {"command": "txport bench", **bench.run(found, PLAN)}


def matrices(*begins: str, without: tuple[str, ...] = ()) -> int:
    """The elements of the matrices of a part of the model."""
    named = tiny_model(CONFIG).named_parameters(remove_duplicate=False)
    return sum(
        each.numel()
        for name, each in named
        if name.startswith(begins)
        and each.ndim == 2
        and "embedding" not in name
        and not any(part in name for part in without)
    )


def test_operations_are_those_of_the_matrices(result: Any) -> None:
    """Two for each element of a matrix and each row: of the decoder and the projection in a step, of 2 texts."""
    step = 2 * 2 * matrices("decoder.", "projection.", without=(".cross_attention.key.", ".cross_attention.value."))
    found = {label: each["limits"]["sizes"][0]["further token"] for label, each in result["candidates"].items()}
    assert found["cpu fp32 ort"]["fp32"] == step
    assert found["cpu int8 ort"]["fp32"] + found["cpu int8 ort"]["int8"] >= 0.9 * step
    assert found["cpu int8 ort"]["int8"] > found["cpu int8 ort"]["fp32"]
    assert step < found["portable fp32 ort"]["fp32"] < 2 * step, "attention's products are nodes of their own"


def test_bytes_are_those_of_a_step(bundles: dict[str, Bundle], result: Any) -> None:
    counted = result["candidates"]["cpu fp32 ort"]["limits"]["sizes"][0]["further token"]["bytes"]
    expected = bandwidth.step_bytes(bundles["cpu fp32"])
    assert expected is not None
    assert expected <= counted <= expected + SMALL


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_tables_of_positions_are_looked_up(target: str, tmp_path: Path) -> None:
    """Cosines and sines are no bytes that a step reads, however many positions a model has."""
    sizes = {}
    for positions in (32, 4096):
        config = LlamaConfig(
            vocab_size=32, d_model=32, heads=2, decoder_layers=2, feed_forward=48, max_length=positions
        )
        bundle = bundle_of(saved(config, tmp_path / f"toy {positions}"), tmp_path / str(positions), target)
        found = profile._profile(bundle, "ort", PLAN)[0]["further token"]["bytes"]
        counted = bandwidth.step_bytes(bundle)
        assert counted is None or abs(found - counted) < SMALL
        sizes[positions] = found
    assert abs(sizes[4096] - sizes[32]) < SMALL


def test_a_pause_after_a_round_takes_no_step_away(
    bundles: dict[str, Bundle], result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may wait for a processor between the last step and the next reading of a clock."""
    work = rounds.WORK["seq2seq"]

    def paused(*args: Any) -> Any:
        found = work.round(*args)
        time.sleep(0.05)
        return found

    monkeypatch.setitem(rounds.WORK, "seq2seq", work._replace(round=paused))
    (size,) = profile._profile(bundles["cpu fp32"], "ort", PLAN)
    expected = result["candidates"]["cpu fp32 ort"]["limits"]["sizes"][0]
    assert {phase: each["fp32"] for phase, each in size.items()} == {
        phase: each["fp32"] for phase, each in expected.items()
    }


def test_every_phase_has_a_limit_and_a_profile(result: Any) -> None:
    rows = reached(result)
    assert len(rows) == 9
    for each in rows:
        assert each["limit"] > 0
        assert each["share"] == pytest.approx(100 * each["limit"] / each["ms"])
        assert each["by"] in ("memory", "products")
    for each in result["candidates"].values():
        assert min(each["limits"]["rates"].values()) > 0
        for phase in each["limits"]["sizes"][0].values():
            assert min(phase["kinds"].values()) >= 0
            assert {"MatMul", "QGemm", "DynamicQuantizeMatMul", "MatMulNBits", "Gemm", "FusedMatMul"} & set(
                phase["kinds"]
            )
    text = markdown(result)
    assert "## Share of the limit" in text
    assert "## Time by operator" in text


def test_a_weight_that_is_read_in_half_of_the_steps_counts_half() -> None:
    events = [profile.Event(at, (0, name), "MatMul", 1.0, 100, 10.0) for at, name in ((0, "a"), (1, "a"), (1, "b"))]
    assert profile._summary(events, 2) == {"bytes": 150, "fp32": 15, "int8": 0, "kinds": {"MatMul": 1.5}}
