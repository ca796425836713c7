"""The contract of each target: functions that return the graphs of its bundles, given a model's facts."""

from __future__ import annotations

from txport.bundles.device_ports import CUDA
from txport.bundles.ports import CPU, PORTABLE, Contract
from txport.models.facts import Task

CONTRACTS: dict[str, dict[Task, Contract]] = {"portable": PORTABLE, "cpu": CPU, "cuda": CUDA}
