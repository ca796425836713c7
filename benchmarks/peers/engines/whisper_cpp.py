"""whisper.cpp: a file of a folder of Whisper, and greedy search with its encoder and decoder, one source at a time.

The file has no tokens and no filters, since features and ids are given. "int8" is Q8_0, by the rounding of the package
gguf, which is that of whisper.cpp's own tool. "fp32" is fp16, since whisper.cpp has no convolutions of fp32.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import Model, Search
from benchmarks.peers.engines.speech import Target, read
from txport.errors import UnsupportedError

PACKAGES = ("pywhispercpp", "gguf", "numpy")
FILE = "model.bin"
MAGIC = 0x67676D6C
FILE_TYPES = {"fp32": 1, "int8": 2007}  # 7 is Q8_0, of the second version of its blocks
TENSOR_TYPES = {"fp32": 0, "fp16": 1, "int8": 8}
# transformers' name -> OpenAI's, which whisper.cpp has, within a layer
RENAMED = {
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
ATTENTIONS = {"self_attn": "attn", "encoder_attn": "cross_attn"}
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
OUTER = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}


def prepare(model: Model, folder: Path) -> None:
    """Write a folder of transformers as a file of whisper.cpp, and the ids that begin and end a target."""
    from safetensors.numpy import load_file

    source = Path(model.checkpoint)
    config = read(source / "config.json")
    with (folder / FILE).open("wb") as file:
        file.write(struct.pack("<12i", *header(config), FILE_TYPES[model.precision]))
        file.write(struct.pack("<2i", config["num_mel_bins"], 0))  # filters without values
        file.write(struct.pack("<i", 0))  # tokens
        for name, values in load_file(source / "model.safetensors").items():
            if name != "proj_out.weight":  # it is the embedding
                write(file, rename(name.removeprefix("model.")), values, model.precision)
    Target.of(model.checkpoint).save(folder)


def header(config: dict[str, Any]) -> Iterator[int]:
    """Yield the magic number and the sizes."""
    yield MAGIC
    yield config["vocab_size"]
    for side, longest in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        yield from (config[longest], config["d_model"], config[f"{side}_attention_heads"], config[f"{side}_layers"])
    yield config["num_mel_bins"]


def rename(name: str) -> str:
    """Return whisper.cpp's name of a tensor."""
    if name in OUTER:
        return OUTER[name]
    part, _, kind = name.rpartition(".")
    side, *within = part.split(".", 3)
    if within[0] != "layers":
        return f"{OUTER.get(part, part)}.{kind}"
    _, number, inner = within[0], within[1], within[2]
    attention, _, projection = inner.partition(".")
    renamed = f"{ATTENTIONS[attention]}.{PROJECTIONS[projection]}" if projection else RENAMED[inner]
    return f"{side}.blocks.{number}.{renamed}.{kind}"


def write(file: IO[bytes], name: str, values: NDArray[Any], precision: str) -> None:
    """Write a tensor: matrices in the precision, convolutions in fp16, all others in fp32."""
    import gguf

    is_convolution = ".conv" in name
    kind = "fp32"
    if values.ndim > 1 and "positional" not in name:
        kind = "int8" if precision == "int8" and not is_convolution else "fp16"
    if is_convolution and values.ndim == 1:
        values = values[:, None]
    file.write(struct.pack("<3i", values.ndim, len(name.encode()), TENSOR_TYPES[kind]))
    file.write(struct.pack(f"<{values.ndim}i", *reversed(values.shape)))
    file.write(name.encode())
    match kind:
        case "int8":
            values = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
        case "fp16":
            values = values.astype(np.float16)
    file.write(np.ascontiguousarray(values).tobytes())


class Engine:
    """whisper.cpp with the option `threads`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        self._library = library()
        self._context = self._library.whisper_init_from_file(bytes(folder / FILE))
        if not self._context:
            raise UnsupportedError("whisper.cpp does not load this model; its log has the reason")
        self._words = self._library.whisper_n_vocab(self._context)
        self._target = Target.load(folder)
        self._search = search
        self._threads = options["threads"]

    def encode(self, sources: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the features of each source."""
        return [np.ascontiguousarray(each) for each in sources]

    def generate(self, inputs: list[NDArray[np.float32]]) -> list[list[int]]:
        """Search each source."""
        return [self._one(each) for each in inputs]

    def _one(self, features: NDArray[np.float32]) -> list[int]:
        size, frames = features.shape
        place = features.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._library.whisper_set_mel(self._context, place, frames, size)
        self._library.whisper_encode(self._context, 0, self._threads)
        found = [self._next([*self._target.begin], 0)]
        for step in range(self._search.max_new_tokens - 1):
            found.append(self._next(found[-1:], len(self._target.begin) + step))
        return found

    def _next(self, tokens: list[int], past: int) -> int:
        """Return the most probable token after some that follow `past` others."""
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        self._library.whisper_decode(self._context, ids, len(tokens), past, self._threads)
        logits = self._library.whisper_get_logits(self._context)
        row = np.ctypeslib.as_array(logits, (len(tokens), self._words))[-1]
        row[self._target.end] = -np.inf
        return int(row.argmax())

    def decode(self, outputs: list[list[int]]) -> list[list[int]]:
        """Return the targets."""
        return outputs


def library() -> Any:
    """Return whisper.cpp's functions."""
    package = importlib.util.find_spec("_pywhispercpp")
    assert package is not None
    assert package.origin is not None
    for name in ("ggml-base", "ggml-cpu", "ggml", "whisper"):  # a build for this processor does not say where they are
        found = ctypes.CDLL(str(Path(package.origin).parent / f"lib{name}.so"))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    floats = ctypes.POINTER(ctypes.c_float)
    for name, result, arguments in (
        ("init_from_file", pointer, [ctypes.c_char_p]),
        ("n_vocab", number, [pointer]),
        ("set_mel", number, [pointer, floats, number, number]),
        ("encode", number, [pointer, number, number]),
        ("decode", number, [pointer, ctypes.POINTER(ctypes.c_int32), number, number, number]),
        ("get_logits", floats, [pointer]),
    ):
        function = getattr(found, f"whisper_{name}")
        function.restype, function.argtypes = result, arguments
    return found
