"""The energy that the machine's processors and GPUs use, where it tells: RAPL on Linux, and NVIDIA's NVML."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

ZONES = Path("/sys/class/powercap")
PACKAGE = "package"  # zones of whole processors; their parts, such as "core", are within these


class Meter:
    """Reads the counters of all processors and GPUs; some systems let only root read those of processors."""

    def __init__(self) -> None:
        self._zones = [each for each in sorted(ZONES.glob("intel-rapl:*")) if _read(each / "name").startswith(PACKAGE)]
        self._gpus = _gpus()
        self._before = self._counts()

    def joules(self) -> float | None:
        """Return the energy in J since the last call; None where no counter is read."""
        before, self._before = self._before, self._counts()
        kept = [(before[zone], now, most) for zone, (now, most) in self._before.items() if zone in before]
        return sum((now - then[0]) % most for then, now, most in kept) if kept else None

    def _counts(self) -> dict[str, tuple[float, float]]:
        """Return each counter in J, and where it begins again at 0."""
        found = {}
        for zone in self._zones:
            count, most = _read(zone / "energy_uj"), _read(zone / "max_energy_range_uj")
            if count and most:
                found[zone.name] = (1e-6 * int(count), 1e-6 * int(most))
        for at, (nvml, handle) in enumerate(self._gpus):
            with contextlib.suppress(nvml.NVMLError):  # GPUs before Volta do not count
                found[f"gpu {at}"] = (1e-3 * nvml.nvmlDeviceGetTotalEnergyConsumption(handle), float("inf"))
        return found


def _read(file: Path) -> str:
    """Return the text of a file; "" if it can't be read."""
    with contextlib.suppress(OSError):
        return file.read_text(encoding="ascii").strip()
    return ""


def _gpus() -> list[tuple[Any, Any]]:
    """Return NVML and its handle of each GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [(pynvml, pynvml.nvmlDeviceGetHandleByIndex(at)) for at in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # the package is not installed, or there is no driver: its errors are as many as its versions
        return []
