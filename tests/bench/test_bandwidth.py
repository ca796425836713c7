"""The bound of a step: which bytes it reads, and how fast the machine reads as many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_config, tiny_model, unproven
from txport.bench import bandwidth
from txport.bench import measure as bench
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.runtimes.ort import sessions
from txport.targets.cpu import LARGE_VOCABULARY

SCREENED = pytest.mark.skipif(
    sessions.may_saturate(), reason="sums of 8-bit products may saturate here, so all logits are computed"
)
CONFIG = tiny_config(d_model=64, feed_forward=96)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "toy"
    save_checkpoint(folder, tiny_model(CONFIG))
    return folder


@pytest.fixture(scope="module")
def fused(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return unproven(source, tmp_path_factory.mktemp("bundles") / "fp32", target="cpu")


def test_a_step_reads_the_decoder_and_the_projection_once(fused: Bundle) -> None:
    computed_by_the_encoder = (".cross_attention.key.", ".cross_attention.value.")
    read = [
        parameter
        for name, parameter in tiny_model(CONFIG).named_parameters(remove_duplicate=False)
        if name.startswith(("decoder.", "decoder_norm.", "projection."))
        if not any(part in name for part in computed_by_the_encoder)
    ]
    large = sum(parameter.nbytes for parameter in read if parameter.nbytes >= 256)  # smaller ones stand in the graph
    assert bandwidth.step_bytes(fused) == large


@SCREENED
def test_the_likeliest_token_is_found_with_a_quarter_of_the_projections_bytes(tmp_path: Path) -> None:
    config = tiny_config(d_model=64, target_vocab_size=LARGE_VOCABULARY, tied="none")
    save_checkpoint(tmp_path / "toy", tiny_model(config))
    bundle = unproven(tmp_path / "toy", tmp_path / "out", target="cpu")
    greedy, beams = (bandwidth.step_bytes(bundle, count) or 0 for count in (1, 4))
    projection = 4 * 64 * LARGE_VOCABULARY
    scales_and_zeros = (4 + 1) * LARGE_VOCABULARY
    assert beams - greedy == projection - (projection // 4 + scales_and_zeros)


def test_fewer_bits_are_fewer_bytes(fused: Bundle, source: Path, tmp_path: Path) -> None:
    sizes = [
        bandwidth.step_bytes(unproven(source, tmp_path / name, target="cpu", precision=name)) or 0
        for name in ("int8", "int4")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert 3 * sizes[0] < (bandwidth.step_bytes(fused) or 0)


def test_a_target_without_steps_has_no_share(bundle: Bundle) -> None:
    assert bandwidth.step_bytes(bundle) is None


def test_bench_says_what_a_step_reaches(fused: Bundle, source: Path) -> None:
    plan = bench.Plan(batch=(1,), source=(4,), tokens=(4,), rounds=3, threads=1, scenario=("phases",), starts=1)
    result = bench.run(bench.candidates([("fused", fused)], ("torch", "ort"), str(source)), plan)
    figures = result["sizes"][0]["figures"]
    ours = figures["ort"]
    size = bandwidth.step_bytes(fused)
    assert "bandwidth reached" not in figures["torch"]
    assert set(ours) == {*bench.UNITS, *bench.BANDWIDTH} - {"load"}
    assert size is not None
    for figure in ours["read bandwidth"], ours["bandwidth reached"]:
        assert 0 < figure["q1"] <= figure["median"] <= figure["q3"]
    slowest = size / (1e-3 * ours["further token"]["q3"]) / (1e9 * ours["read bandwidth"]["q3"])
    fastest = size / (1e-3 * ours["further token"]["q1"]) / (1e9 * ours["read bandwidth"]["q1"])
    assert 100 * slowest <= ours["bandwidth reached"]["median"] <= 100 * fastest
