"""Engines that read folders of transformers, and the environments: some need packages that break each other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from txport.errors import UnsupportedError

ENGINES = "benchmarks.peers.engines."
REQUIREMENTS = Path(__file__).parent / "requirements"
PEERS = "peers"  # CTranslate2, Optimum, PyTorch, and ONNX Runtime's own tools
# those that need another one
OTHERS = {
    ENGINES + "genai": "genai",
    ENGINES + "openvino_llm": "openvino",
    ENGINES + "openvino_encoder": "openvino",
    ENGINES + "openvino_speech": "openvino",
    ENGINES + "llama_cpp": "llama-cpp",
    ENGINES + "whisper_cpp": "whisper-cpp",
}


class Peer(NamedTuple):
    """An engine's module, and the precision that it knows."""

    engine: str
    precision: str


DECODERS = {
    "onnxruntime-genai int8": Peer(ENGINES + "genai", "int8"),
    "OpenVINO GenAI int8": Peer(ENGINES + "openvino_llm", "int8"),
    "llama.cpp Q8_0": Peer(ENGINES + "llama_cpp", "int8"),
    "llama.cpp Q4_K_M": Peer(ENGINES + "llama_cpp", "int4 Q4_K_M"),
    "llama.cpp Q4_0": Peer(ENGINES + "llama_cpp", "int4"),
    "onnxruntime-genai int4": Peer(ENGINES + "genai", "int4"),
    "OpenVINO GenAI int4": Peer(ENGINES + "openvino_llm", "int4"),
}
DYNAMIC = "ONNX Runtime dynamic int8"
ENCODERS = {
    DYNAMIC: Peer(ENGINES + "ort_encoder", "int8"),
    "Optimum Intel int8": Peer(ENGINES + "openvino_encoder", "int8"),
    "Optimum Intel fp32": Peer(ENGINES + "openvino_encoder", "fp32"),
}
SPEECH = {
    "OpenVINO's Whisper int8": Peer(ENGINES + "openvino_speech", "int8"),
    "whisper.cpp Q8_0": Peer(ENGINES + "whisper_cpp", "int8"),
}
NEWER = {**DECODERS, **ENCODERS, **SPEECH}  # these round by block or by row
DEFAULTS = {PEERS: Path(".venv-peers/bin/python")} | {
    name: Path(f".venv-peers-{name}/bin/python") for name in sorted(set(OTHERS.values()))
}


def environment_of(engine: str) -> str:
    """Return the name of the environment of an engine's module, which is that of its file of requirements."""
    return OTHERS.get(engine, PEERS)


def pythons_of(given: Iterable[str]) -> dict[str, Path]:
    """Return the Python of every environment: NAME=PATH, or a PATH for `PEERS`, in place of the default."""
    found = dict(DEFAULTS)
    for each in given:
        name, _, path = each.rpartition("=")
        if (name or PEERS) not in found:
            raise UnsupportedError(f"there is no environment {name!r}; there are: {', '.join(found)}")
        found[name or PEERS] = Path(path)
    return found
