"""Exports of models larger than memory: the same bytes, one tensor in memory at a time; and graphs without weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

import txport
from tests.tiny import edit_graph, tiny_config, tiny_model
from txport.api.release import parity
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints import checkpoint
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.cli import main
from txport.errors import BundleError, UnsupportedError
from txport.exporters.weights import graph_weights
from txport.models import architecture
from txport.models.names import INDEX, MANIFEST, WEIGHTS
from txport.proof.parity import check
from txport.proof.proven import prove, write
from txport.targets import TARGETS
from txport.targets.cpu import LARGE_VOCABULARY

KINDS = [(target, precision) for target, each in TARGETS.items() for precision in each.precisions]
SMALLEST = ("tiny", "gpt2-tiny", "bert-tiny", "t5-tiny")

# The most memory that an export takes beyond what one of a tiny model does, in bytes, each in a fork with a peak of its
# own: PyTorch is imported once for all.
MEASURE = """
import os, sys, tempfile
from pathlib import Path
from txport.checkpoints import checkpoint
from txport.models.architectures import gpt2
from txport.proof.proven import write
from txport.system.machine import peak_memory

gpt2.PRESETS["gpt2-large"] = gpt2.GPT2Config(vocab_size=64, d_model=1024, heads=16, decoder_layers=4, max_length=64,
    pad_id=0, eos_id=1)
checkpoint.STREAMED_ABOVE = 0

def measure(target, precision):
    peaks = []
    for name in ("gpt2-tiny", "gpt2-large"):
        with tempfile.TemporaryDirectory() as folder:
            how = {"target": target, "precision": precision, "external_above": 0}
            write(checkpoint.load_checkpoint(f"preset:{name}"), Path(folder), **how)
        peaks.append(peak_memory())
    print(1e6 * (peaks[1] - peaks[0]), flush=True)

print(checkpoint.size_of(checkpoint.load_checkpoint("preset:gpt2-large").outline), flush=True)
for kind in sys.argv[1:]:
    process = os.fork()
    if process == 0:
        measure(*kind.split())
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
"""
LARGEST_TENSOR = 4 * 4096 * 1024
SMOOTHING = 5  # int8 runs the model in float64, on 256 tokens, whose numbers take as much as some tensors
FIXED = 50_000_000  # what quantising a piece takes
# Otherwise glibc keeps freed memory, another amount in each run, and the peak is more than what an export holds.
GIVEN_BACK = {"MALLOC_TRIM_THRESHOLD_": "1000000"}


def test_an_export_holds_one_tensor_at_a_time() -> None:
    command = [sys.executable, "-c", MEASURE, "cpu int8", "portable fp16"]
    environment = {**os.environ, **GIVEN_BACK}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    parameters, *taken = map(float, done.stdout.split())
    assert 4 * parameters > 200e6
    assert len(taken) == 2
    assert max(taken) < SMOOTHING * LARGEST_TENSOR + FIXED < 4 * parameters


def files_of(bundle: Bundle) -> dict[str, bytes]:
    """What lies in a bundle, but for its goldens and its manifest."""
    return {path.name: path.read_bytes() for path in sorted((bundle.path / "onnx").iterdir())}


@pytest.mark.parametrize(("target", "precision"), KINDS)
def test_a_streamed_export_has_the_same_bytes(
    target: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one file or in shards, tied or not, with a vocabulary that is screened."""
    config = tiny_config(tied="target", target_vocab_size=LARGE_VOCABULARY if precision == "fp32" else 31)
    save_checkpoint(tmp_path / "mine", tiny_model(config))
    weights = load_file(tmp_path / "mine" / WEIGHTS)
    halves = list(weights)[::2], list(weights)[1::2]
    found = []
    ways = (1 << 40, 0, 0) if precision == "fp32" else (1 << 40, 0)  # how a file is read, no precision changes
    for number, above in enumerate(ways):
        monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", above)
        if number == 2:
            (tmp_path / "mine" / WEIGHTS).unlink()
            for part, names in enumerate(halves):
                save_file({name: weights[name] for name in names}, tmp_path / "mine" / f"part-{part}.safetensors")
            places = {name: f"part-{part}.safetensors" for part, names in enumerate(halves) for name in names}
            (tmp_path / "mine" / INDEX).write_text(json.dumps({"weight_map": places}))
        (tmp_path / str(number)).mkdir()
        loaded = load_checkpoint(str(tmp_path / "mine"))
        assert (loaded.read is None) == (number == 0)
        bundle = write(loaded, tmp_path / str(number), target=target, precision=precision)
        graphs = {
            name: onnx.load_from_string(each) for name, each in files_of(bundle).items() if name.endswith(".onnx")
        }
        for each in graphs.values():
            del each.metadata_props[:]  # the hash of the checkpoint
        rest = {name: each for name, each in files_of(bundle).items() if name not in graphs}
        found.append({**rest, **{name: each.SerializeToString() for name, each in graphs.items()}})
    assert all(each == found[0] for each in found[1:])


@pytest.mark.parametrize(
    ("name", "target", "precision"),
    [("gpt2-tiny", "cpu", "int8"), ("tiny", "cpu", "fp32"), ("gpt2-tiny", "portable", "fp16")],
)
def test_a_streamed_model_is_proven_as_far_as_its_report_says(
    name: str, target: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "STREAMED_ABOVE", 0)
    monkeypatch.setattr(check, "LARGE", 0)
    loaded = load_checkpoint(f"preset:{name}")
    bundle, report = prove(write(loaded, tmp_path, target=target, precision=precision), loaded)
    assert report.passed, report.describe_worst()
    longest = "longest" if loaded.facts.task == "seq2seq" else "longest prompt"
    assert {"weights", "one row", "padded rows", longest} <= {each.case for each in report.tensors}
    assert report.tokens == []
    assert bundle.manifest.parity["left_out"][0] == check.GOLDEN_SEARCHES

    def spoil(model: onnx.ModelProto) -> None:
        norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
        next(each for each in norm.attribute if each.name == "epsilon").f = 1.0

    role = next(iter(bundle.manifest.graphs))
    assert not check.check(edit_graph(tmp_path, role, spoil), loaded, {"ort": "cpu"}).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_16_bits_go_into_the_graphs_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    """In fp32 exactly; of fp16, in fp16 bit for bit."""
    save_checkpoint(tmp_path / "mine", tiny_model(tiny_config()))
    stored = {name: each.to(dtype) for name, each in load_file(tmp_path / "mine" / WEIGHTS).items()}
    save_file(stored, tmp_path / "mine" / WEIGHTS)
    loaded = load_checkpoint(str(tmp_path / "mine"))
    for precision in ("fp32", "fp16"):
        (tmp_path / precision).mkdir()
        bundle = write(loaded, tmp_path / precision, precision=precision)
        held = {}
        for role in ("encoder", "decoder"):
            held |= graph_weights(bundle.file(role))
        expected = {
            name: each.float().numpy().astype(precision.replace("fp", "float")) for name, each in stored.items()
        }
        seen = [name for name in held if name in expected]
        assert len(seen) > 20
        assert all(np.array_equal(held[name], expected[name]) for name in seen)
        if (precision, dtype) == ("fp16", torch.float16):
            assert all(held[name].tobytes() == stored[name].numpy().tobytes() for name in seen)


@pytest.mark.parametrize(
    ("name", "target", "precision"),
    [(name, *kind) for at, kind in enumerate(KINDS) for turn, name in enumerate(SMALLEST) if (at + turn) % 4 == 0],
)
def test_graphs_without_weights(name: str, target: str, precision: str, tmp_path: Path) -> None:
    """They have the ports and the operators of those with weights, and no file of weights is there."""
    how = {"target": target, "precision": precision}
    bundle = txport.export(f"preset:{name}", tmp_path / "out", weights=False, **how)
    found = load_bundle(tmp_path / "out")
    assert found.manifest.weightless
    assert found.manifest == bundle.manifest
    assert {path.suffix for path in (tmp_path / "out" / "onnx").iterdir()} == {".onnx"}
    (tmp_path / "whole").mkdir()
    whole = write(load_checkpoint(f"preset:{name}"), tmp_path / "whole", **how)
    assert found.manifest.graphs == whole.manifest.graphs
    parameters = dict(load_checkpoint(f"preset:{name}").outline.named_parameters(remove_duplicate=False))
    for role in found.manifest.graphs:
        shapes = [
            {
                each.name: (tuple(each.dims), each.data_type)
                for each in onnx.load(file, load_external_data=False).graph.initializer
            }
            for file in (found.file(role), whole.file(role))
        ]
        assert shapes[0] == shapes[1]
        held = onnx.load(found.file(role), load_external_data=False).graph.initializer
        kept = {each.name for each in held if each.data_location != onnx.TensorProto.EXTERNAL}
        assert not kept & parameters.keys()


COMMANDS = {
    "run": ["run", "OUT", "hello"],
    "verify": ["verify", "OUT"],
    "parity": ["parity", "OUT"],
    "bisect": ["parity", "OUT", "--bisect"],
    "bench": ["bench", "OUT"],
    "score": ["score", "OUT", "a", "b"],
}


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("weightless") / "out"
    txport.export("preset:gpt2-tiny", out, weights=False)
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_what_has_no_weights_does_not_run(command: str, weightless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says why, and what to do."""
    with pytest.raises(SystemExit) as ended:
        main([str(weightless) if word == "OUT" else word for word in COMMANDS[command]])
    assert ended.value.code
    said = capsys.readouterr().err.strip().splitlines()
    assert [line for line in said if "has graphs without weights; they can't be run or compared" in line] == said[-1:]


def test_what_has_no_weights_can_be_looked_at(weightless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(weightless)])
    assert "weights: none, so nothing runs it" in capsys.readouterr().out
    with pytest.raises(BundleError, match="has graphs without weights"):
        txport.load(weightless)
    with pytest.raises(BundleError, match="has graphs without weights"):
        parity(load_bundle(weightless), "preset:gpt2-tiny", {"ort": "cpu"})
    how = {"target": "cpu", "precision": "int8", "auto": True}
    with pytest.raises(UnsupportedError, match="auto needs weights; remove auto"):
        txport.export("preset:gpt2-tiny", weightless.parent / "other", weights=False, **how)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_a_manifest_must_say_clearly_that_there_are_no_weights(value: object, weightless: Path, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(
        json.dumps({**json.loads((weightless / MANIFEST).read_text()), "weightless": value})
    )
    with pytest.raises(BundleError, match="weightless must be true or false"):
        load_bundle(tmp_path)


def test_graphs_of_the_largest_preset_take_no_weights(tmp_path: Path) -> None:
    """Its weights are 350 GB in 16 bits; all that is written here are its graphs."""
    assert "gpt2-175b" in architecture.presets()
    bundle = txport.export("preset:gpt2-175b", tmp_path / "out", precision="fp16", weights=False)
    assert bundle.size < 10e6
    sizes = onnx.load(bundle.file("decoder"), load_external_data=False).graph.initializer
    assert sum(2 * int(np.prod(each.dims)) for each in sizes) > 345e9
