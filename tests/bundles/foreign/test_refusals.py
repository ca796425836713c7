"""Folders of others that are damaged, mixed up or of no known contract: one line each, which names what differs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import txport
from tests.bundles.foreign.layouts import keep, lay_out
from tests.checkpoints.families.test_families import rewrite
from txport.api import release
from txport.api.locate import open_bundle
from txport.bundles.bundle import Bundle
from txport.bundles.declared import read_signature
from txport.bundles.foreign.read import read_foreign
from txport.errors import BundleError, TxportError, UnsupportedError
from txport.targets.ports import Port

Portable = Callable[[str], Bundle]


@pytest.fixture
def folder(portable: Portable, tmp_path: Path) -> Path:
    return lay_out(portable("t5"), "apart", tmp_path / "foreign")


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(str(path))
    change(model)
    onnx.save(model, str(path))


def refused(folder: Path, kind: type[TxportError] = BundleError) -> str:
    with pytest.raises(kind) as error:
        txport.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json; download it too"),
        (lambda folder: (folder / "decoder_model.onnx").unlink(), "has decoder_with_past_model.onnx, encoder_model."),
        (
            lambda folder: (folder / "encoder_model.onnx").rename(folder / "model.onnx"),
            "model.onnx must be the only graph",
        ),
        (lambda folder: (folder / "model.onnx").touch(), "mixes layouts: it has decoder_model.onnx, decoder_with"),
        (lambda folder: (folder / "encoder_model.onnx").write_bytes(b""), "encoder_model.onnx is not an ONNX file: it"),
        (lambda folder: (folder / "encoder_model.onnx").write_bytes(b"\x0a\xff"), "is not an ONNX file"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json holds a list, expected an object"),
        (lambda folder: rewrite(folder / "config.json", vocab_size=25), "is float32 [batch_size, decoder_sequence_len"),
        (lambda folder: rewrite(folder / "config.json", vocab_size="x"), "vocab_size must be a positive whole number"),
        (lambda folder: rewrite(folder / "generation_config.json", eos_token_id=[1, None]), "eos_token_id must lie in"),
        (
            lambda folder: rewrite(folder / "generation_config.json", num_beams=0),
            "are not valid: beams must lie in 1 to 4096, got 0",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json is not a tokenizer"),
    ],
)
def test_what_is_missing_or_damaged_is_named(change: Callable[[Path], Any], message: str, folder: Path) -> None:
    change(folder)
    assert message in refused(folder)


def test_graphs_in_two_places_are_refused(folder: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"")
    assert "has graphs in two places, decoder_model.onnx and onnx/model.onnx" in refused(folder)


def test_variants_are_named_where_another_is_asked_for(portable: Portable, tmp_path: Path) -> None:
    folder = lay_out(portable("gpt2"), "one", tmp_path / "foreign", variant="quantized")
    assert "has no graphs without a suffix; available: variant='quantized'" in refused(folder, UnsupportedError)
    assert txport.load(folder, variant="quantized").search([[5]], max_new_tokens=1)
    lay_out(portable("gpt2"), "one", folder)
    with pytest.raises(
        UnsupportedError, match="no graphs of the variant 'q4'; available: those without a suffix, variant="
    ):
        txport.load(folder, variant="q4")
    with pytest.raises(UnsupportedError, match="a variant is for folders that others exported"):
        txport.load(portable("gpt2").path, variant="q4")


def test_every_port_that_differs_is_listed(folder: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        keep(graph.input, lambda name: name != "past_key_values.0.decoder.key")
        graph.input.append(helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["b", 3, "s"]))
        (ids,) = (value for value in graph.input if value.name == "input_ids")
        ids.type.tensor_type.shape.dim[1].dim_value = 128
        (mask,) = (value for value in graph.input if value.name == "encoder_attention_mask")
        mask.type.tensor_type.elem_type = TensorProto.INT32
        keep(graph.output, lambda name: name != "present.1.decoder.value")

    edit(folder / "decoder_with_past_model.onnx", change)
    told = refused(folder)
    file = "decoder_with_past_model.onnx"
    assert "does not follow a known contract: " in told
    for problem in (
        f"{file}: input input_ids is int64 [batch_size, 128], expected int64 [batch_size, decoder_sequence_length]",
        f"{file}: input encoder_attention_mask is int32 [batch_size, encoder_sequence_length], expected int64 [",
        f"{file}: input past_key_values.0.decoder.key is missing, expected float32 or float16 [batch_size, 4, past_",
        f"{file}: input inputs_embeds, float32 [b, 3, s], was not expected",
        f"{file}: output present.1.decoder.value is missing, expected float32 or float16 [batch_size, 4, past_",
    ):
        assert problem in told


def externalised(path: Path, location: str) -> None:
    """Say that the first weight lies in another file."""

    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    model = onnx.load(str(path))
    change(model)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("weights.bin", "has weights in weights.bin, which is missing"),
        ("../weights.bin", "reads '../weights.bin', which is not the name of a file in the same folder"),
        ("/etc/passwd", "reads '/etc/passwd', which is not the name of a file in the same folder"),
        ("link.bin", "link.bin is a link to a file outside of the folder"),
    ],
)
def test_weights_lie_in_the_folder(location: str, message: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 16))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    externalised(folder / "encoder_model.onnx", location)
    assert message in refused(folder)


def test_links_of_the_hub_s_cache_are_followed(portable: Portable, tmp_path: Path) -> None:
    folder = lay_out(portable("gpt2"), "one", tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("..") / ".." / "blobs" / file.name)
    assert txport.load(folder).search([[5]], max_new_tokens=1)


def test_loops_and_local_functions_are_refused(folder: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    function = helper.make_function("here", "Again", ["x"], ["y"], [node], [helper.make_opsetid("", 18)])
    edit(folder / "encoder_model.onnx", lambda model: model.functions.append(function))
    assert "has local functions, which may expand without end" in refused(folder)
    edit(folder / "encoder_model.onnx", lambda model: model.graph.node.append(helper.make_node("Loop", ["a"], ["b"])))
    assert "has the operator Loop, which may not terminate" in refused(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("decoder_start_token_id", "bos_token_id"), "defines no start token of targets; set decoder_start_token_id"),
        (("eos_token_id",), "defines no end token of targets; set eos_token_id"),
        (("n_positions",), "defines no maximum number of tokens; set max_position_embeddings"),
    ],
)
def test_what_nothing_says_is_asked_for(keys: tuple[str, ...], message: str, folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    rewrite(folder / "config.json", model_type="unheard", **dict.fromkeys(keys))
    assert message in refused(folder)


def test_a_mask_is_the_one_that_is_named(portable: Portable, tmp_path: Path) -> None:
    """The spelling of a token says nothing of its use."""
    folder = lay_out(portable("bert-tokens"), "plain", tmp_path / "foreign")
    rewrite(folder / "config.json", model_type="unheard")
    words = {f"w{number}": number for number in range(24) if number != 5}
    tokenizer = Tokenizer(WordLevel(words | {"[MASK]": 5}))
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert "no mask token; set mask_token_id in its config.json" in refused(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    assert txport.load(folder).facts.vocabulary.mask == 5


@pytest.mark.parametrize("beside", [True, False])
def test_scores_of_a_cross_encoder_are_by_its_function(beside: bool, portable: Portable, tmp_path: Path) -> None:
    folder = lay_out(portable("bert-labels"), "plain", tmp_path / "foreign")
    edit(
        folder / "model.onnx",
        lambda model: setattr(model.graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 1),
    )
    tokens = {"cls_token_id": 3, "sep_token_id": 4, "mask_token_id": 5}
    rewrite(folder / "config.json", id2label={"0": "LABEL_0"}, problem_type=None, **tokens)
    assert read_foreign(folder).manifest.facts.function_to_apply == "sigmoid"
    activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
    if beside:
        values = {"model_type": "CrossEncoder", **activation}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(values), encoding="utf-8")
    else:
        rewrite(folder / "config.json", sentence_transformers=activation)
    assert read_foreign(folder).manifest.facts.function_to_apply == "none"


@pytest.mark.parametrize(
    ("name", "pads", "has_integers"),
    [
        ("Add", True, False),
        ("GroupQueryAttention", False, False),
        ("DequantizeLinear", True, False),
        ("MatMulInteger", True, True),
        ("QuantizeLinear", True, True),
    ],
)
def test_operators_say_what_a_session_may_do(
    name: str, pads: bool, has_integers: bool, portable: Portable, tmp_path: Path
) -> None:
    """Prompts of one batch are padded on the left, where attention by lengths reads from the left.

    ONNX Runtime refuses some weights that are dequantised where integers must not saturate.
    """
    folder = lay_out(portable("gpt2"), "one", tmp_path / "foreign")
    domain = "" if name in ("Add", "DequantizeLinear", "MatMulInteger", "QuantizeLinear") else "com.microsoft"
    edit(
        next(folder.glob("*.onnx")),
        lambda model: model.graph.node.append(helper.make_node(name, [], [], domain=domain)),
    )
    manifest = read_foreign(folder).manifest
    assert (manifest.pads, manifest.has_integers) == (pads, has_integers)  # type: ignore[attr-defined]


def test_an_unknown_type_runs_by_its_ports_and_has_no_parity(folder: Path) -> None:
    expected = txport.load(folder).search([[9, 5, 3, 1]], beams=2, max_new_tokens=6)
    rewrite(folder / "config.json", model_type="unheard")
    assert txport.load(folder).search([[9, 5, 3, 1]], beams=2, max_new_tokens=6) == expected
    with pytest.raises(TxportError, match="unknown model_type 'unheard'"):
        release.parity(open_bundle(folder), folder, {"ort": "cpu"})


def test_without_a_tokenizer_text_is_numbers(folder: Path) -> None:
    model = txport.load(folder)
    assert model.generate("9 5 3 1", max_new_tokens=3)[0].output
    with pytest.raises(TxportError, match="this model has no tokenizer, so text is token ids"):
        model.generate("Guten Tag")


def test_a_signature_is_read_as_onnx_reads_it(tmp_path: Path) -> None:
    """A weight among the inputs is no input, and a dim without a name or a size is dynamic."""
    values = [
        helper.make_tensor_value_info(name, kind, dims)
        for name, kind, dims in (("a.0", 1, ["b", None]), ("b", 10, [0, 1 << 40]), ("c", 9, []), ("weight", 1, [1]))
    ]
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [1], [0.0])
    model = helper.make_model(helper.make_graph([], "g", values, values, [weight]))
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    ports = (Port("a.0", "float32", ("b", "?")), Port("b", "float16", (0, 1 << 40)), Port("c", "bool", ()))
    assert read_signature(tmp_path / "x.onnx") == (ports, (*ports, Port("weight", "float32", (1,))))


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_graph_is_read_or_refused(data: st.DataObject, folder: Path) -> None:
    """Whatever its bytes are."""
    path = folder / "decoder_model.onnx"
    content = bytearray(path.read_bytes())
    before = bytes(content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(4000, len(content) - 1)))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), len(content) // 2, 40]))
    path.write_bytes(bytes(content[:cut]))
    with contextlib.suppress(TxportError):
        read_foreign(folder)
    path.write_bytes(before)


def test_graphs_that_lie_about_their_dims_are_told_of(portable: Portable, tmp_path: Path) -> None:
    """A decoder that gives logits over another vocabulary than its port says."""
    folder = lay_out(portable("gpt2"), "whole", tmp_path / "foreign")

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 2]), "pads"))
        (node,) = (node for node in graph.node if "logits" in node.output)
        node.output[list(node.output).index("logits")] = "inner"
        graph.node.append(helper.make_node("Pad", ["inner", "pads"], ["logits"]))
        (value,) = graph.output
        value.type.tensor_type.shape.dim[2].dim_param = "anything"

    edit(folder / "model.onnx", change)
    with pytest.raises(TxportError, match=r"gives logits of shape \(1, 1, 26\), expected \(1, tokens, 24\)"):
        txport.load(folder).search([[5]], max_new_tokens=2)
