"""Folders of GPTQ, AWQ and MXFP4 compute what transformers computes with the same weights in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.weights.packed import write_folder, write_mxfp4
from txport.proof.against.hold import hold_against

pytest.importorskip("transformers")


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_a_folder_in_4_bits_equals_transformers(method: str, family: str, tmp_path: Path) -> None:
    biases: dict[str, Any] = {"change": add_biases} if family == "qwen2" else {}
    write_folder(tmp_path / "folder", method, family=family, **biases)
    assert hold_against(str(tmp_path / "folder"), "transformers").passed


def test_experts_in_mxfp4_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    write_mxfp4(tmp_path / "folder")
    assert hold_against(str(tmp_path / "folder"), "transformers").passed


def add_biases(tensors: dict[str, Any]) -> None:
    """Add the biases that the class of Qwen 2 has: those of queries, keys and values."""
    for name in [name for name in tensors if name.endswith(("q_proj.scales", "k_proj.scales", "v_proj.scales"))]:
        tensors[name.replace("scales", "bias")] = tensors[name][0] * 100
