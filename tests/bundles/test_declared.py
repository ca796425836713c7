"""What the file of a graph declares, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from txport.bundles.declared import read_initializers
from txport.bundles.graphs import LONGEST_NAME


def reader_of(name: str, folder: Path) -> str | None:
    """The node that is said to read a weight of this name."""
    weight = numpy_helper.from_array(np.ones(2, np.float32), name)
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [2])
    node = helper.make_node("Identity", [name], ["out"], "/layer.0/Identity")
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [out], [weight])), folder / "graph.onnx")
    return read_initializers(folder / "graph.onnx")[0].reader


@pytest.mark.parametrize("name", ["onnx::MatMul_1234", "onnx::MatMul_12_Q4_scales", "val_12", "_v_2041_merged_3", "7"])
def test_a_weight_whose_name_was_lost_is_known_by_its_reader(name: str, tmp_path: Path) -> None:
    assert reader_of(name, tmp_path) == "/layer.0/Identity"


@pytest.mark.parametrize("name", ["decoder.0.weight", "val_12_other", "onnx::MatMul_12!", "12_Q4_"])
def test_a_weight_with_a_name_keeps_it(name: str, tmp_path: Path) -> None:
    assert reader_of(name, tmp_path) is None


def test_a_name_that_is_longer_than_any_is_not_looked_at(tmp_path: Path) -> None:
    """A stranger's, which might take long to match."""
    usual = "onnx::" + "_Q4" * 60
    assert len(usual) < LONGEST_NAME
    assert reader_of(usual, tmp_path)
    assert reader_of("onnx::" + "_Q4" * 8000, tmp_path) is None
