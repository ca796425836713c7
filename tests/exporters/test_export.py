"""What `export` writes: plain ONNX with exactly the promised ports, each weight once, the same bytes every time."""

from __future__ import annotations

import json
import shutil
import site
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import txport
from tests.tiny import LETTERS, SAMPLES, VOCABULARY, tiny_config, tiny_model, unread
from txport.bundles.bundle import Bundle, load_bundle, seal
from txport.bundles.manifest import Manifest
from txport.bundles.metadata import metadata
from txport.checkpoints.checkpoint import Checkpoint, expected_tensors, load_checkpoint, save_checkpoint
from txport.errors import UnsupportedError
from txport.exporters.export import export_graphs
from txport.exporters.tracing import passes
from txport.exporters.weights import graph_weights
from txport.models.architectures.gpt2 import GPT2, GPT2Config
from txport.models.ops import Ops
from txport.models.parts import Linear
from txport.proof.parity.check import check
from txport.proof.proven import write
from txport.targets.ports import DECODER, ENCODER, SELECT, Graph

Forward = Callable[[Tensor, Ops, Linear, Linear], Tensor]
ROLES = [ENCODER, DECODER, SELECT]


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """All choices other than those of the session's checkpoint."""
    choices = {"norm": "post", "positions": "learned", "activation": "silu", "scale_embedding": False}
    config = tiny_config(**choices, tied="target", source_vocab_size=31, encoder_layers=1)
    folder = tmp_path_factory.mktemp("variant") / "checkpoint"
    save_checkpoint(folder, tiny_model(config, seed=3))
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def large(variant: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Bundle]:
    """The variant, exported as if it were too large for one file, with a later opset."""
    folder = tmp_path_factory.mktemp("large")
    exported = export_graphs(variant, folder, opset=21, external_above=4000)
    return exported, seal(folder, exported)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Bundle]:
    """A third architecture, in fp16, through the public API."""
    folder = tmp_path_factory.mktemp("half")
    save_checkpoint(folder / "checkpoint", tiny_model(tiny_config(activation="gelu", tied="none"), seed=5))
    bundle = txport.export(folder / "checkpoint", folder / "bundle", precision="fp16")
    return load_checkpoint(str(folder / "checkpoint")), bundle


def test_same_bytes_every_time(
    bundle: Bundle, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from another folder, under another name of it."""
    shutil.copytree(checkpoint, tmp_path / "elsewhere" / checkpoint.name)
    monkeypatch.chdir(tmp_path / "elsewhere")
    twin = txport.export(checkpoint.name, "twin")
    names = sorted(path.relative_to(bundle.path) for path in bundle.path.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to("twin") for path in Path("twin").rglob("*") if path.is_file())
    different = [name for name in names if (bundle.path / name).read_bytes() != (twin.path / name).read_bytes()]
    assert different == []


def test_no_graph_holds_what_it_does_not_read(
    bundle: Bundle, large: tuple[Manifest, Bundle], half: tuple[Checkpoint, Bundle]
) -> None:
    """Tied weights and untied ones, in one file and beside it, in both precisions."""
    for each in (bundle, large[1], half[1]):
        files = [each.file(role) for role in ROLES]
        assert [unread(onnx.load(str(file), load_external_data=False).graph) for file in files] == [set()] * 3


def test_layout(bundle: Bundle) -> None:
    names = {path.relative_to(bundle.path).as_posix() for path in bundle.path.rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "samples.txt",
        "golden.npz",
        "README.md",
        "txport.json",
        "onnx/encoder_model.onnx",
        "onnx/decoder_model_merged.onnx",
        "onnx/select_rows.onnx",
    }


def test_manifest_says_where_it_comes_from(bundle: Bundle, checkpoint: Path) -> None:
    manifest = load_bundle(bundle.path).manifest
    assert manifest.checkpoint == {"name": "toy", "sha256": load_checkpoint(str(checkpoint)).sha256}
    assert manifest.tools.keys() == {"txport", "torch", "onnx", "onnxscript"}
    assert (manifest.target, manifest.precision, manifest.opset) == ("portable", "fp32", 18)
    assert manifest.parity["verdict"] == "pass"
    assert 0 < bundle.measured["worst_logit_difference"] < 1e-4
    model = onnx.load(str(bundle.file(ENCODER)))
    assert (model.producer_name, model.producer_version) == ("txport", txport.__version__)
    assert {entry.key: entry.value for entry in model.metadata_props} == metadata(manifest, ENCODER)


def test_no_path_of_this_machine_in_any_file(bundle: Bundle, checkpoint: Path, half: tuple[Checkpoint, Bundle]) -> None:
    places = {Path.cwd(), Path.home(), Path(sys.prefix), Path(torch.__file__).parent, Path(txport.__file__).parent}
    places |= {
        checkpoint,
        checkpoint.parent,
        bundle.path,
        Path(tempfile.gettempdir()),
        *map(Path, site.getsitepackages()),
    }
    needles = [str(place).encode() for place in places if len(str(place)) > 1] + [b"site-packages", b"dist-packages"]
    files = [path for folder in (bundle.path, half[1].path) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 12
    assert [(path, needle) for path in files for needle in needles if needle in path.read_bytes()] == []


def onnx_type(dtype: str) -> str:
    return {"int64": "tensor(int64)", "float32": "tensor(float)", "float16": "tensor(float16)"}[dtype]


def assert_ports(file: Path, graph: Graph) -> None:
    """As ONNX Runtime reads them."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for expected, found in ((graph.inputs, session.get_inputs()), (graph.outputs, session.get_outputs())):
        assert [(port.name, onnx_type(port.dtype), list(port.dims)) for port in expected] == [
            (value.name, value.type, value.shape) for value in found
        ]


@pytest.mark.parametrize("role", ROLES)
def test_files_have_the_ports_of_the_contract(
    role: str, bundle: Bundle, half: tuple[Checkpoint, Bundle], large: tuple[Manifest, Bundle]
) -> None:
    for each in (bundle, half[1], large[1]):
        assert_ports(each.file(role), each.manifest.graphs[role])
    assert {port.dtype for port in half[1].manifest.graphs[role].outputs} <= {"float16", "int64"}


@pytest.mark.parametrize("role", ROLES)
def test_standard_operators_only(role: str, bundle: Bundle) -> None:
    model = onnx.load(str(bundle.file(role)))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert model.ir_version <= 10
    assert not model.functions
    for node in model.graph.node:
        assert node.domain == ""
        assert onnx.defs.has(node.op_type, 18, "")
        assert not any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
    assert not {node.op_type for node in model.graph.node} & {"If", "Loop", "Scan", "Identity", "Constant"}


@pytest.mark.parametrize("role", [ENCODER, DECODER])
def test_nothing_is_computed_twice_or_in_vain(role: str, bundle: Bundle) -> None:
    model = onnx.load(str(bundle.file(role)))
    seen = [
        (node.op_type, *node.input, *sorted(str(attribute) for attribute in node.attribute))
        for node in model.graph.node
    ]
    assert len(seen) == len(set(seen))
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    assert {name for node in model.graph.node for name in node.output} <= used
    assert {tensor.name for tensor in model.graph.initializer} <= used


def assert_each_weight_once(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Under one of its names in the checkpoint, in no second copy, and none is left out."""
    names = dict(checkpoint.model.named_parameters(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in expected_tensors(checkpoint.model).items()}
    found: list[str] = []
    for role in (ENCODER, DECODER):
        weights = {name: array for name, array in graph_weights(bundle.file(role)).items() if array.dtype.kind == "f"}
        large = {name: array for name, array in weights.items() if array.size > 1}
        tables = {name for name in large if name.endswith("_embedding.positions")} - set(names)
        ours = [first[id(names[name])] for name in large if name not in tables]
        assert len(tables) == (checkpoint.config.positions == "sinusoidal")
        assert len(ours) == len(set(ours))
        matrices = [array.tobytes() for array in large.values() if array.ndim == 2]
        assert len(matrices) == len(set(matrices))
        found += ours
    assert set(found) == set(first.values())
    shared = {name for name in found if found.count(name) > 1}
    assert shared == ({"source_embedding.tokens.weight"} if checkpoint.config.tied == "all" else set())


def test_every_weight_stands_once(
    bundle: Bundle,
    checkpoint: Path,
    variant: Checkpoint,
    large: tuple[Manifest, Bundle],
    half: tuple[Checkpoint, Bundle],
) -> None:
    assert_each_weight_once(bundle, load_checkpoint(str(checkpoint)))
    assert_each_weight_once(large[1], variant)
    assert_each_weight_once(half[1], half[0])


def test_passes_say_how_often_they_fired(large: tuple[Manifest, Bundle], variant: Checkpoint) -> None:
    counts = large[0].passes
    bundle = large[1]
    assert counts.keys() == {ENCODER, DECODER}
    for role, fired in counts.items():
        assert list(fired) == list(passes.PORTABLE)
        assert fired["name dims"] == len(bundle.manifest.graphs[role].outputs)
        for name in ("merge equal nodes", "lift constants"):
            assert fired[name] > 0, name


def test_large_models_lie_beside_their_graphs(large: tuple[Manifest, Bundle], variant: Checkpoint) -> None:
    bundle = large[1]
    for role in (ENCODER, DECODER):
        file = bundle.file(role)
        data = file.with_name(f"{file.name}_data")
        assert f"onnx/{data.name}" in bundle.manifest.files
        model = onnx.load(str(file), load_external_data=False)
        places = {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}
        assert places == {data.name}
        assert data.stat().st_size > 0.9 * sum(w.nbytes for w in graph_weights(file).values() if w.dtype.kind == "f")
    assert not bundle.file(SELECT).with_name("select_rows.onnx_data").exists()
    assert json.loads((bundle.path / "config.json").read_text())["transformers.js_config"]["use_external_data_format"]
    report = check(bundle, variant, {"ort": "cpu", "reference": "cpu"})
    assert report.passed, report.describe_worst()


@pytest.mark.parametrize("opset", [9, 17, 26])
def test_opset_out_of_range(opset: int, variant: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"opset must lie in 18 to 25, got {opset}"):
        export_graphs(variant, tmp_path, opset=opset)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UnsupportedError, match=f"got {opset}"):
        txport.export(variant.folder or "", tmp_path / "out", opset=opset)
    assert not list(tmp_path.iterdir())


def test_exporting_leaves_no_trace(large: tuple[Manifest, Bundle], variant: Checkpoint) -> None:
    expected = tiny_model(variant.config, seed=3)
    for name, parameter in variant.model.named_parameters():
        assert torch.equal(parameter, expected.get_parameter(name))
    assert not variant.model.training


def read(bundle: Bundle, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((bundle.path / name).read_text(encoding="utf-8"))
    return values


def test_config_for_optimum_and_transformers_js(bundle: Bundle, large: tuple[Manifest, Bundle]) -> None:
    """The keys that the two need, by the words of their model type; more do no harm."""
    assert (
        read(bundle, "config.json").items()
        >= {
            "model_type": "marian",
            "is_encoder_decoder": True,
            "vocab_size": len(VOCABULARY),
            "decoder_vocab_size": len(VOCABULARY),
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "max_position_embeddings": 24,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "use_cache": True,
        }.items()
    )
    assert read(bundle, "config.json")["architectures"] == ["MarianMTModel"]
    assert (
        read(bundle, "config.json")["transformers.js_config"].items()
        >= {
            "dtype": "fp32",
            "use_external_data_format": False,
        }.items()
    )
    # Two vocabularies: theirs is the one of the logits.
    assert read(large[1], "config.json")["vocab_size"] == large[1].manifest.graphs[DECODER].outputs[0].dims[-1]
    assert (read(large[1], "config.json")["encoder_layers"], read(large[1], "config.json")["decoder_layers"]) == (1, 2)


def test_generation_config(bundle: Bundle) -> None:
    assert (
        read(bundle, "generation_config.json").items()
        >= {
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "max_length": 25,
            "num_beams": 1,
            "use_cache": True,
        }.items()
    )


def test_tokenizer_config(bundle: Bundle, large: tuple[Manifest, Bundle]) -> None:
    assert read(bundle, "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 24,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    assert not (large[1].path / "tokenizer_config.json").exists(), "it has no tokenizer"


def test_companions_come_along(bundle: Bundle, checkpoint: Path, large: tuple[Manifest, Bundle]) -> None:
    for name in ("tokenizer.json", "samples.txt"):
        assert (bundle.path / name).read_bytes() == (checkpoint / name).read_bytes()
        assert not (large[1].path / name).exists()
    assert bundle.samples == list(SAMPLES)
    assert set("".join(SAMPLES)) <= set(LETTERS)


class Own(nn.Module):
    """A feed-forward of its own: a function of two linear layers, and a third one."""

    def __init__(self, function: Forward, bias: bool) -> None:
        super().__init__()
        self.function = function
        self.one = Linear(32, 32, tag="one")
        self.two = nn.ModuleList([Linear(32, 32, bias, tag="two")])
        self.outer = Linear(64, 32, tag="outer")

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        return self.outer(self.function(x, ops, self.one, self.two[0]))  # type: ignore[no-any-return, arg-type]


def own(function: Forward, *, bias: bool = True) -> Checkpoint:
    """A model with such a feed-forward."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, pad_id=0, eos_id=1, d_model=32, heads=2, decoder_layers=1, max_length=16)
    model = GPT2(config)
    model.get_submodule("decoder.0").feed_forward = Own(function, bias)
    return Checkpoint("own", model.eval(), "0" * 64)


def read_again(x: Tensor, ops: Ops, one: Linear, two: Linear) -> Tensor:
    first, second = one(x), two(x)
    return torch.cat([first, second], -1) * torch.cat([first, first], -1)


def over_its_weight(x: Tensor, ops: Ops, one: Linear, two: Linear) -> Tensor:
    return torch.cat([torch.tanh(one(x)) @ one.weight, torch.tanh(two(x))], -1)


def twice(x: Tensor, ops: Ops, one: Linear, two: Linear) -> Tensor:
    first, second = ops.together(x, one, one)
    return torch.cat([first, second * two(x)], -1)


def alone(x: Tensor, ops: Ops, one: Linear, two: Linear) -> Tensor:
    return torch.cat([*ops.together(x, one), *ops.together(x, two)], -1)


JOINED: dict[str, Forward] = {
    "by hand": lambda x, ops, one, two: torch.cat([one(x), two(x)], -1),
    "by hand, along another dim": lambda x, ops, one, two: torch.stack([one(x), two(x)], -2).flatten(-2),
    "by hand, and read again": read_again,
    "of several depths": lambda x, ops, one, two: torch.cat(ops.together(x, one, two), -1),
    "twice the same": twice,
    "one alone": alone,
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", JOINED)
def test_linear_layers_are_packed_where_a_model_says_so(kind: str, bias: bool, target: str, tmp_path: Path) -> None:
    """If they differ, and all of them have a bias."""
    checkpoint = own(JOINED[kind], bias=bias)
    bundle = write(checkpoint, tmp_path, target=target)
    packs = {name for name, each in bundle.manifest.weights.items() if len(each.weights) > 1}
    name = "{decoder.0.feed_forward.one.weight,decoder.0.feed_forward.two.0.weight}"
    assert (name in packs) == (kind == "of several depths" and bias)
    assert not any("feed_forward" in each for each in packs) or name in packs
    if target == "cpu":
        assert check(bundle, checkpoint, {"ort": "cpu"}, searches=False).passed


@pytest.mark.parametrize(("target", "precision"), [("portable", "int8"), ("cpu", "int8"), ("cpu", "int4")])
def test_a_matrix_that_another_operator_reads_is_not_quantised(target: str, precision: str, tmp_path: Path) -> None:
    checkpoint = own(over_its_weight)
    bundle = write(checkpoint, tmp_path, target=target, precision=precision)
    quantised = {name for each in bundle.manifest.weights.values() if each.is_quantised for name in each.weights}
    assert "decoder.0.feed_forward.two.0.weight" in quantised
    assert "decoder.0.feed_forward.one.weight" not in quantised
    assert check(bundle, checkpoint, {"ort": "cpu"}, searches=False).passed
