"""Weights in 8 and 4 bits on CUDA: what kernels take, and that the exporter gives them nothing else."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.exporters.cuda.audit import graphs
from tests.fake_cuda.fixture import FakeCuda
from txport.exporters.cuda.audit.graph import audit
from txport.exporters.cuda.quantize import ALIGNED, SIZES

ROWS = {4: 16, 8: 5}  # up to which a product unpacks weights itself
RUNS = 3  # of a graph until it is captured


@pytest.mark.parametrize("bits", ROWS)
def test_few_rows_take_one_kernel_and_more_a_copy_of_the_matrix(fake_cuda: FakeCuda, tmp_path: Path, bits: int) -> None:
    """As long as the weight has whole groups of rows; a kernel that unpacks, and cuBLAS, are two."""
    most = ROWS[bits]
    cases = list(product(SIZES[bits], (512, 512 + ALIGNED // 2), (1, most, most + 1)))
    asked = []
    for number, (block, outputs, rows) in enumerate(cases):
        model = graphs.quantised(bits, block, rows, outputs, 512)
        assert audit(model, captured=True).faults == ()
        file = graphs.save(model, tmp_path / f"{number}.onnx")
        asked.append({"do": "run", "file": str(file), "lengths": {}, "aliases": {}, "on_host": [], "times": 2})
    for (block, outputs, rows), answer in zip(cases, fake_cuda.ask(*asked), strict=True):
        first, second = answer["counts"]
        kernels = 1 if rows <= most and outputs % ALIGNED == 0 else 2
        assert (first["launches"], first["uploads"]) == (RUNS * kernels, 0), (block, outputs, rows)
        assert (second["launches"], second["replays"]) == (0, 1)
