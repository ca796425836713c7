"""What can't be done is refused in one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import onnx
import pytest

import txport
from tests.javascript import in_chromium, on_node, run
from tests.javascript.test_encoders import made, whole_words
from tests.models.architectures.test_bert import model_of, tiny
from tests.tiny import edit_graph, reseal, unproven
from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints.checkpoint import save_checkpoint
from txport.errors import BundleError
from txport.models.names import MANIFEST


def refused(bundle: Path | str, *request: Any, **how: Any) -> tuple[str, str]:
    """The kind of an error, and its one line."""
    found = on_node(bundle, [request or ("generate", "bad")], **how)[-1]
    assert "error" in found, found
    assert "\n" not in found["message"]
    return found["error"], found["message"]


def changed(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A change of the manifest."""

    def work(path: Path) -> None:
        values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        edit(values)
        (path / MANIFEST).write_text(json.dumps(values), encoding="utf-8")

    return work


def truncated(path: Path) -> None:
    file = path / "onnx" / "decoder_model_merged.onnx"
    file.write_bytes(file.read_bytes()[:-1])


def altered(path: Path) -> None:
    file = path / "onnx" / "decoder_model_merged.onnx"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def without(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def other_words(**changes: Any) -> Callable[[Path], None]:
    """Another tokenizer, sealed as if it were the bundle's own."""

    def work(path: Path) -> None:
        file = path / "tokenizer.json"
        values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
        file.write_text(json.dumps(values), encoding="utf-8")
        reseal(path)

    return work


WRONG = "UnsupportedError"
BPE = {"type": "BPE", "vocab": {}, "merges": []}
FAULTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no manifest": (without(MANIFEST), "BundleError", "is not a bundle: txport.json can't be read (ENOENT)"),
    "no graph": (without("onnx/encoder_model.onnx"), "BundleError", "encoder_model.onnx can't be read (ENOENT); copy"),
    "a graph cut off": (truncated, "BundleError", "is damaged: onnx/decoder_model_merged.onnx has"),
    "another byte": (altered, "BundleError", "has another SHA-256 than the manifest; copy or export it again"),
    "no JSON": (lambda path: (path / MANIFEST).write_text("{"), "BundleError", "txport.json is not JSON"),
    "older": (changed(lambda values: values.update(format=1)), "BundleError", "bundle format 1, this package reads"),
    "newer": (changed(lambda values: values.update(format=99)), "BundleError", "update this package"),
    "another target": (
        changed(lambda values: values.update(target="cuda")),
        "UnsupportedError",
        "is of target 'cuda', this package runs portable and cpu; export with `--target portable`",
    ),
    "the wrong graphs": (changed(lambda values: values.update(target="cpu")), "BundleError", "txport.json is damaged"),
    "a path outside": (
        changed(lambda values: values["files"].update({"../x": {"bytes": 1, "sha256": ""}})),
        "BundleError",
        "'../x' does not lie in the bundle",
    ),
    "no facts": (changed(lambda values: values.update(facts=3)), "BundleError", "facts must be an object"),
    "no weights": (changed(lambda values: values.update(weightless=True)), "BundleError", "has no weights"),
    "a foreign tokenizer": (
        other_words(model=BPE),
        "UnsupportedError",
        "does not read a tokenizer with a BPE model",
    ),
    "another decoder": (other_words(decoder={"type": "Fuse"}), WRONG, "a decoder of the kind Fuse"),
    "another normalizer": (other_words(normalizer={"type": "Nmt"}), WRONG, "a normalizer of the kind Nmt"),
    "other words": (other_words(pre_tokenizer=None), WRONG, "no rule for where words end"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bundle_that_is_damaged_or_foreign(fault: str, copied: Path) -> None:
    edit, kind, words = FAULTS[fault]
    edit(copied)
    error, message = refused(copied)
    assert (error, words in message) == (kind, True), message


def test_weights_of_any_size(tmp_path: Path) -> None:
    """Node.js reads no file of 2 GiB at once; ONNX Runtime maps it. Its size and its hash are those of the manifest."""
    path = unproven("preset:gpt2-tiny", tmp_path / "bundle", target="cpu").path
    (found,) = on_node(path, [("search", [5, 9])], large=True)
    assert found[0]["tokens"] == list(txport.load(path).search([[5, 9]])[0][0].tokens)
    file = path / "onnx" / "weights.bin"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    size = f"has {len(data) - 1} bytes, {len(data)} in"
    for content, words in ((data, "has another SHA-256 than"), (data[1:], size), (None, "can't be read (ENOENT)")):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        error, message = refused(path, large=True)
        assert (error, f"weights.bin {words}" in message) == ("BundleError", True), message


def test_nested_normalizers_are_read_at_any_depth(copied: Path) -> None:
    request = [("generate", "bad")]
    expected = on_node(copied, request)
    other_words(normalizer="here")(copied)
    file = copied / "tokenizer.json"
    nested = '{"type": "Sequence", "normalizers": [' * 20_000 + '{"type": "NFC"}' + "]}" * 20_000
    file.write_text(file.read_text(encoding="utf-8").replace('"here"', nested), encoding="utf-8")
    reseal(copied)
    assert on_node(copied, request) == expected


@pytest.mark.parametrize("request_", [("generate", "bad", None), ("search", [5], None)])
def test_options_that_are_no_object(request_: tuple[Any, ...], copied: Path) -> None:
    assert refused(copied, *request_) == ("UnsupportedError", "options must be an object, got null")


def test_an_operator_that_a_build_lacks(checkpoint: Path, tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "GroupQueryAttention").op_type = "NewAttention"

    path = unproven(checkpoint, tmp_path / "bundle", target="cpu").path
    with pytest.raises(BundleError):  # that operator may need an input which this one leaves out
        edit_graph(path, "step", edit)
    error, message = refused(path)
    assert error == "UnsupportedError"
    assert "lacks the operator com.microsoft:NewAttention of the step graph of" in message
    assert message.endswith("a cpu bundle in fp32; export with `--target portable`")


@pytest.mark.parametrize("web", [False, True])
def test_a_standard_operator_that_a_build_lacks(web: bool, copied: Path) -> None:
    """Such as one of a later opset; said alike by both builds."""

    def edit(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "Hardmux"

    edit_graph(copied, "decoder", edit)
    error, message = refused(copied, web=web)
    assert error == "UnsupportedError"
    assert "lacks the operator Hardmux of the decoder graph of" in message
    assert message.endswith("a portable bundle in fp32; use a newer build, or export with a lower `--opset`")


def test_token_ids_need_no_tokenizer(copied: Path) -> None:
    source = txport.load(copied).encode("bad")
    expected = txport.load(copied).search([source])[0][0].tokens
    other_words(model=BPE)(copied)
    assert on_node(copied, [("search", source)])[0][0]["tokens"] == list(expected)


REQUESTS: list[tuple[tuple[Any, ...], str, str]] = [
    (("generate", ""), "UnknownTextError", "the text is empty; give at least one character"),
    (("generate", 3), "TextError", "a text must be a string, got 3"),
    (
        ("generate", "b!"),
        "TextError",
        "'b!' has characters outside the vocabulary: '!'; unknown: \"skip\" leaves them out",
    ),
    (("generate", "!", {"unknown": "skip"}), "UnknownTextError", "'!' has no character of the vocabulary"),
    (("generate", "a" * 24), "TextError", "a source must have 1 to 24 tokens, got 25; split the text"),
    (
        ("generate", "a", {"unknown": "no"}),
        "UnsupportedError",
        "unknown must be one of auto, token, error, skip, got 'no'",
    ),
    (
        ("generate", "a", {"num_beams": 2}),
        "UnsupportedError",
        "unknown option 'num_beams'; supported: prefix, unknown, special, signal, beams, nbest,",
    ),
    (
        ("generate", "a", {"beam_groups": 2}),
        "UnsupportedError",
        "beam_groups is for txport in Python; leave it out here",
    ),
    (("generate", "a", {"nbest": 2}), WRONG, "nbest can't exceed beams, got 2 of 1"),
    (("generate", "a", {"beams": 2, "do_sample": True}), WRONG, "do_sample and beams exclude each other"),
    (("generate", "a", {"beams": 1.5}), WRONG, "beams must be a whole number, got 1.5"),
    (("generate", "a", {"seed": 1}), WRONG, "seed is for sampling; give do_sample too"),
    (("generate", "a", {"max_new_tokens": 99}), "UnsupportedError", "max_new_tokens must not exceed the model's"),
    (
        ("generate", "a", {"eos_token_id": 99}),
        "UnsupportedError",
        "eos_token_id must lie in the vocabulary, 0 to 21; got",
    ),
    (("generate", "a", {"prefix": "AA zz"}), "TextError", "'zz' is not a token of the vocabulary"),
    (("grow", "a", {"beams": 2, "nbest": 2}), WRONG, "only one hypothesis can be streamed, got nbest 2"),
    (("search", [1, 99]), "TextError", "a source must be a list of token ids in 0 to 21, got [1,99]"),
    (("wide", [3, 5]), "TextError", 'a source must be a list of token ids in 0 to 21, got ["3n","5n"]'),
    (("search", [3], {"prefix": [5.5]}), "TextError", "a prefix must be a list of tokens of 0 to 21 that end nothing"),
    (("search", [3], {"prefix": ["5"]}), "TextError", "a prefix must be a list of tokens of 0 to 21 that end nothing"),
    (("search", [3], {"prefix": "5"}), "TextError", "a prefix must be a list of tokens of 0 to 21 that end nothing"),
    (("generate", "a", {"prefix": [5]}), "TextError", "a prefix must be a string, got [5]"),
    (("infer", "a"), WRONG, "infer needs an encoder-only model"),
    (("infer", "a", {"pool": "first"}), WRONG, "unknown option 'pool'; supported: unknown"),
]


def test_requests_that_make_no_sense(bundle: Bundle) -> None:
    answered = on_node(bundle.path, [request for request, _, _ in REQUESTS])
    for (request, kind, words), theirs in zip(REQUESTS, answered, strict=True):
        assert (theirs["error"], theirs["message"][: len(words)]) == (kind, words), request


def test_what_can_not_be_loaded(bundle: Bundle, tmp_path: Path) -> None:
    assert "ENOENT" in refused(tmp_path / "nowhere")[1]
    assert refused(bundle.path, load={"provider": "cuda"})[1] == "onnxruntime-node runs on cpu here, not on 'cuda'"
    assert refused(bundle.path, load={"thread": 1})[1] == (
        "unknown option 'thread'; supported: ort, provider, threads, tokenizer"
    )
    assert refused(bundle.path, load={"threads": 0})[1] == "threads must be a whole number from 1 on, got 0"
    for tokenizer in ({}, "x", None, {"source": {}, "target": {}}):
        error, message = refused(bundle.path, load={"tokenizer": tokenizer})
        assert (error, "tokenizer must have the methods encode and decode" in message) == ("UnsupportedError", True)
    assert refused(bundle.path, load={"ort": {}})[1].startswith("ort must be the module of onnxruntime-node or")


def test_a_function_that_gives_no_files() -> None:
    """Whatever it does, the error is the package's, and keeps what was thrown."""
    told = run("places.mjs", {})
    incomplete = "the bundle is not a bundle: txport.json can't be read"
    fix = "`txport export CHECKPOINT OUT` makes one"
    assert told == {
        "throws": ["BundleError", f"{incomplete} (out of reach); {fix}", "out of reach"],
        "throws no error": ["BundleError", f"{incomplete} (3); {fix}", 3],
        "gives nothing": ["BundleError", f"{incomplete} (the function gives nothing for it); {fix}", None],
        "gives text": ["BundleError", f"{incomplete} (the function must give its bytes, got '{{}}'); {fix}", None],
        "gives bytes of another realm": ["BundleError", told["gives bytes of another realm"][1], ANY],
        "is no address": ["UnsupportedError", "'https://[/' is not an address of a bundle", "Invalid URL"],
    }
    assert "txport.json is not JSON" in told["gives bytes of another realm"][1]


def test_a_bundle_that_is_replaced_while_it_loads_is_read_again(bundle: Bundle, copied: Path) -> None:
    other_words(normalizer={"type": "NFC"})(copied)
    old, new = (load_bundle(path).manifest.files["tokenizer.json"]["sha256"] for path in (bundle.path, copied))
    assert old != new
    assert run("replaced.mjs", {"before": str(bundle.path), "after": str(copied)}) == {
        "never": old,
        "before its files": new,
        "behind its files": new,
        "always": "BundleError: the bundle was replaced 3 times while it was read; try again when no process writes it",
    }


def test_a_page_without_threads(bundle: Bundle) -> None:
    """It has one thread, and says so; what it can't have is refused."""
    runs: list[dict[str, Any]] = [
        {"requests": [["notes"], ["generate", "bad"]]},
        {"requests": [], "load": {"threads": 2}},
        {"requests": [], "load": {"provider": "webgpu"}},
        {"requests": [], "bundle": "/nowhere"},
    ]
    (notes, found), (threads,), (gpu,), (nowhere,) = in_chromium(bundle.path, runs)
    headers = "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp"
    assert notes == [f"one thread: more need a page with the headers {headers}"]
    assert found["output"] == txport.load(bundle.path).generate("bad")[0].output
    assert threads["message"] == f"2 threads need a page with the headers {headers}; leave threads out for one"
    assert "WebGPU" in gpu["message"]
    assert "/nowhere is not a bundle: txport.json can't be read (HTTP 404)" in nowhere["message"]
    threaded = {"requests": [["notes"], ["generate", "bad"]], "load": {"threads": 2}}
    assert in_chromium(bundle.path, [threaded], isolated=True) == [[[], found]]


def test_an_engine_without_simd(bundle: Bundle) -> None:
    message = "this browser's WebAssembly has no SIMD, which ONNX Runtime needs; use a newer browser"
    assert refused(bundle.path, web=True, simd=False) == ("UnavailableError", message)


def test_labels_that_their_function_can_not_tell_apart(tmp_path: Path) -> None:
    """As Python refuses them."""
    bundle = made(tmp_path, "token_labels", "portable", None, labels=("replaced",))
    for function, words in (("softmax", "of a single label can't be softmax"), ("none", "of labels of tokens must be")):
        changed(lambda values, function=function: values["facts"].update(function_to_apply=function))(bundle)  # type: ignore[misc]
        error, message = refused(bundle, "tag", "5 4")
        assert (error, words in message) == ("BundleError", True), message
        with pytest.raises(BundleError, match=words):
            txport.load(bundle)


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_any_value_in_a_document_is_run_or_refused(target: str, checkpoint: Path, tmp_path: Path) -> None:
    """Of the manifest and the tokenizer, with one value in place of another, or without it."""
    path = unproven(checkpoint, tmp_path / "bundle", target=target).path
    require_refusals(path, ["generate", "bad", {"max_new_tokens": 3}], 100 if target == "portable" else 50)


@pytest.mark.parametrize(
    "head", {"hidden": "embed", "labels": "classify", "token_labels": "tag", "tokens": "fill"}.items(), ids="-".join
)
def test_any_value_of_a_model_that_only_encodes_is_run_or_refused(head: tuple[str, str], tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", model_of(tiny(head[0])), whole_words())
    path = unproven(tmp_path / "checkpoint", tmp_path / "bundle").path
    require_refusals(path, [head[1], "good [MASK]"], 50)


def require_refusals(path: Path, request: list[Any], count: int) -> None:
    """Of so many bundles with a fault, each is run, or refused in one line."""
    told = run("faults.mjs", {"bundle": str(path), "count": count, "seed": 1, "request": request})
    assert told["found"] == []
    assert told["run"] > count / 20
    assert told["refused"] > count * 0.35
