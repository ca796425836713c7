"""Seeded models so small that a test can afford one of each kind, and what tests do to the bundles made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch

from txport.bundles.bundle import Bundle, load_bundle
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.architectures import transformer
from txport.models.architectures.transformer import Transformer, TransformerConfig
from txport.models.facts import Facts
from txport.models.names import MANIFEST
from txport.proof.proven import write
from txport.system.documents import write_json
from txport.system.files import sha256

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
LETTERS = tuple("'abcdefghi")
WORDS = ("AA", "B", "CH", "D", "EH", "F", "G", "HH")
VOCABULARY = (*SPECIAL, *LETTERS, *WORDS)
SAMPLES = ("bad", "chief", "a", "di'ed")


def tiny_config(**changes: Any) -> TransformerConfig:
    sizes = {"d_model": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 2, "decoder_layers": 2, "max_length": 24}
    vocabulary = {"source_vocab_size": len(VOCABULARY), "target_vocab_size": len(VOCABULARY)}
    return TransformerConfig(**{**vocabulary, **sizes, "norm": "pre", **changes})


def tiny_facts(**changes: Any) -> Facts:
    return transformer.facts(tiny_config(**changes))


def tiny_model(config: TransformerConfig, seed: int = 0) -> Transformer:
    """Random weights with biases and norms that count, else a graph that drops them would compute the same."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config).eval()
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


def unproven(checkpoint: str | Path, folder: Path, **how: Any) -> Bundle:
    """What `txport.export` makes, without the comparison with PyTorch, which takes most of its time."""
    folder.mkdir(parents=True)
    return write(load_checkpoint(str(checkpoint)), folder, **how)


def reseal(path: Path) -> Bundle:
    """Mend the hashes in the manifest, so that only the numbers can tell that a file was altered."""
    update_hashes(path)
    return load_bundle(path)


def without_metadata(path: Path) -> None:
    """Let the graphs of a bundle say nothing of themselves, as older ones do, so that only its manifest tells."""
    for file in (path / "onnx").glob("*.onnx"):
        model = onnx.load(str(file), load_external_data=False)
        del model.metadata_props[:]
        onnx.save(model, str(file))
    update_hashes(path)


def update_hashes(path: Path) -> None:
    """Mend the hashes in the manifest; whether the bundle is sound nobody asks."""
    values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    values["files"] = {
        name: {"sha256": sha256(path / name), "bytes": (path / name).stat().st_size} for name in values["files"]
    }
    write_json(path / MANIFEST, values)


def edit_graph(path: Path, role: str, edit: Callable[[onnx.ModelProto], None]) -> Bundle:
    """Change one graph of the bundle at `path`, and seal it as if nothing had happened."""
    file = load_bundle(path).file(role)
    model = onnx.load(str(file))
    edit(model)
    onnx.save(model, str(file))
    return reseal(path)


def unread(graph: onnx.GraphProto) -> set[str]:
    """The initializers of a graph and its branches that nothing in the same or an inner graph reads."""

    def reads(graph: onnx.GraphProto) -> set[str]:
        inner = (reads(attribute.g) for node in graph.node for attribute in node.attribute)
        own = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        return own.union(*inner)

    left = {tensor.name for tensor in graph.initializer} - reads(graph)
    return left.union(*(unread(attribute.g) for node in graph.node for attribute in node.attribute))
