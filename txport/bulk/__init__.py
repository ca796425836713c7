"""Bulk work over tables: `Batch` adds a model's outputs to rows, and `run` does so for whole files."""

from __future__ import annotations

from txport.bulk.batch import Batch
from txport.bulk.driver import run

__all__ = ["Batch", "run"]
