"""Energy, read from counters as Linux shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from txport.bench import energy


def count(zones: Path, counters: Mapping[str, int]) -> None:
    """Write the counters of processors in µJ, which begin again at 1,000,000, and of a part of the first."""
    for name, value in (*counters.items(), ("intel-rapl:0:0", 5)):
        (zones / name).mkdir(exist_ok=True)
        (zones / name / "name").write_text("core\n" if name.count(":") == 2 else f"package-{name[-1]}\n")
        (zones / name / "energy_uj").write_text(f"{value}\n")
        (zones / name / "max_energy_range_uj").write_text("1000000\n")


@pytest.fixture
def zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(energy, "ZONES", tmp_path)
    monkeypatch.setattr(energy, "_gpus", list)
    return tmp_path


def test_energy_is_that_of_all_processors_also_where_a_counter_begins_again(zones: Path) -> None:
    count(zones, {"intel-rapl:0": 900_000, "intel-rapl:1": 0})
    meter = energy.Meter()
    count(zones, {"intel-rapl:0": 100_000, "intel-rapl:1": 300_000})
    assert meter.joules() == pytest.approx(0.5)
    assert meter.joules() == 0


def test_a_gpu_counts_too(zones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1_000, 3_500])
    nvml = SimpleNamespace(NVMLError=OSError, nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counts))
    monkeypatch.setattr(energy, "_gpus", lambda: [(nvml, 0)])
    assert energy.Meter().joules() == 2.5


def test_a_machine_that_does_not_count_has_no_energy(zones: Path) -> None:
    assert energy.Meter().joules() is None
