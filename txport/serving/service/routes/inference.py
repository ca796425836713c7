"""The Open Inference Protocol, version 2, for encoder-only models: tensors in JSON, or in binary after the JSON.

A model reads `text` (BYTES, (B,)), or token ids: `input_ids` (INT64, (B, S)) with an optional `attention_mask`. Outputs
per token are padded with zeros: (B, S, ...).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from txport.api.encoding import require_ability
from txport.api.model import Model
from txport.errors import TextError, quoted
from txport.runtimes.base import EncoderRuntime, Outputs
from txport.runtimes.inputs import infer
from txport.serving.service.bodies import LENGTH_HEADER
from txport.serving.service.calls import Call, Endpoint, Raw, Result, require_fit
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.fields import TENSOR_FIELDS
from txport.serving.service.models import Served
from txport.system.arrays import Array
from txport.version import __version__

TEXT, IDS, MASK = "text", "input_ids", "attention_mask"
MAX_NUMBERS = 1 << 24  # of one tensor
EXTENSIONS = ["binary_tensor_data"]


@dataclass(frozen=True)
class Inference:
    """Runs texts, or token ids, and returns the outputs and the number of tokens of each."""

    model: Model

    def __call__(self, items: Sequence[str | list[int]]) -> list[tuple[Outputs, int]]:
        """Run a batch."""
        sources = [self.model.encode(each) if isinstance(each, str) else each for each in items]
        runtime = self.model.runtime
        assert isinstance(runtime, EncoderRuntime)
        return list(zip(infer(runtime, sources, self.model.facts), map(len, sources), strict=True))


@dataclass(frozen=True)
class Tensor:
    """An input: its shape and its values in order."""

    shape: tuple[int, ...]
    values: Sequence[object]


async def run(call: Call, served: Served) -> Result:
    """Answer an inference request."""
    facts = served.model.facts
    require_fit(served, facts.ability is not None, "an encoder-only model")
    require_ability(facts, "infer")
    tensors = _tensors(cast("list[Mapping[str, object]]", call.values["inputs"]), call.binary)
    items = _items(tensors, served.model)
    wanted = _wanted(call, [each.name for each in facts.outputs])
    found = await call.batched(served, Inference(served.model), items, {})
    call.finish(served.name, sum(tokens for _, tokens in found))
    outputs = {name: _stacked([each[name] for each, _ in found]) for name in wanted}
    about = {"model_name": served.name, "model_version": "1", **call.given("id")}
    return _answer(about, outputs, wanted)


def _tensors(given: Sequence[Mapping[str, object]], binary: bytes) -> dict[str, Tensor]:
    """Return the inputs by name."""
    found: dict[str, Tensor] = {}
    place = 0
    for each in given:
        name, kind, shape = each.get("name"), each.get("datatype"), each.get("shape")
        types = {TEXT: "BYTES", IDS: "INT64", MASK: "INT64"}
        if not isinstance(name, str) or types.get(name) != kind or name in found:
            what = f"an input must be one of {', '.join(f'{key} ({value})' for key, value in types.items())}"
            raise InvalidRequestError(f"{what}; got {quoted(name)} ({quoted(kind)})", param="inputs")
        if not isinstance(shape, list) or not all(type(dim) is int and dim >= 1 for dim in shape):
            raise InvalidRequestError(f"the shape of {name} must be a list of dims of at least 1", param="inputs")
        if (count := math.prod(shape)) > MAX_NUMBERS:  # perhaps too large to be spelled
            raise InvalidRequestError(f"{name} may have {MAX_NUMBERS} values; its shape has more", param="inputs")
        size = _parameters(each, "inputs").get("binary_data_size")
        if size is None:
            values = _flat(each.get("data"))
        elif type(size) is int and 0 <= size <= len(binary) - place:
            values = _from_bytes(binary[place : place + size], str(kind), name)
            place += size
        else:
            raise InvalidRequestError(f"binary_data_size of {name} is not that of the body", param="inputs")
        if len(values) != count:
            raise InvalidRequestError(f"{name} has {len(values)} values, its shape {count}", param="inputs")
        found[name] = Tensor(tuple(shape), values)
    return found


def _parameters(tensor: Mapping[str, object], param: str) -> Mapping[str, object]:
    """Return the parameters of an input or an output."""
    found = tensor.get("parameters")
    if found is not None and not isinstance(found, Mapping):
        raise InvalidRequestError(f"parameters must be an object, got {quoted(found)}", param=param)
    return found or {}


def _flat(values: object) -> list[object]:
    """Return the values of nested lists in order."""
    if not isinstance(values, list):
        raise InvalidRequestError("an input without binary_data_size needs its data, a list", param="inputs")
    while values and isinstance(values[0], list):
        if not all(isinstance(each, list) for each in values):
            raise InvalidRequestError("data must be a list, flat or nested like its shape", param="inputs")
        values = [item for each in values for item in each]
    return values


def _from_bytes(content: bytes, kind: str, name: str) -> list[object]:
    """Return the values of a binary tensor: little-endian numbers, or strings after their lengths."""
    if kind == "INT64":
        if len(content) % 8:
            raise InvalidRequestError(f"{name} has {len(content)} bytes, no multiple of 8", param="inputs")
        return list(np.frombuffer(content, "<i8").tolist())
    found: list[object] = []
    place = 0
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "little")
        part = content[place + 4 : place + 4 + size]
        if len(part) != size:
            raise InvalidRequestError(f"{name} ends within a string", param="inputs")
        found.append(part.decode("utf-8", errors="replace"))
        place += 4 + size
    return found


def _items(tensors: Mapping[str, Tensor], model: Model) -> list[str] | list[list[int]]:
    """Return the texts, or the token ids without padding, of a batch."""
    if TEXT in tensors and len(tensors) == 1:
        texts = tensors[TEXT].values
        if not all(isinstance(each, str) for each in texts):
            raise InvalidRequestError("text must hold strings", param="inputs")
        return cast("list[str]", list(texts))
    if IDS not in tensors or TEXT in tensors or len(tensors[IDS].shape) != 2:
        raise InvalidRequestError("give text alone, or input_ids of shape (B, S)", param="inputs")
    rows, length = tensors[IDS].shape
    mask = tensors.get(MASK, Tensor((rows, length), [1] * (rows * length)))
    values = (tensors[IDS].values, mask.values)
    if mask.shape != (rows, length) or not all(type(each) is int for part in values for each in part):
        raise InvalidRequestError("input_ids and attention_mask must be whole numbers of one shape", param="inputs")
    found = []
    for at in range(0, rows * length, length):
        kept = [bool(each) for each in mask.values[at : at + length]]
        if kept != sorted(kept, reverse=True):
            raise InvalidRequestError(
                "padding must be at the right: attention_mask is ones, then zeros", param="inputs"
            )
        found.append(_checked(cast("list[int]", list(tensors[IDS].values[at : at + sum(kept)])), model))
    return found


def _checked(ids: list[int], model: Model) -> list[int]:
    """Return token ids of one text; raise `TextError` if the model can't take them."""
    vocabulary = model.facts.vocabulary
    if not 1 <= len(ids) <= vocabulary.longest:
        raise TextError(f"a text must have 1 to {vocabulary.longest} tokens, got {len(ids)}")
    if not 0 <= min(ids) <= max(ids) < vocabulary.size:
        raise TextError(f"token ids must lie in 0 to {vocabulary.size - 1}, got {min(ids)} to {max(ids)}")
    return ids


def _wanted(call: Call, names: Sequence[str]) -> dict[str, bool]:
    """Return the outputs to return, and whether each is wanted in binary."""
    parameters = cast("Mapping[str, object]", call.values.get("parameters") or {})
    usual = bool(parameters.get("binary_data_output", False))
    given = cast("list[Mapping[str, object]]", call.values.get("outputs") or [{"name": name} for name in names])
    found: dict[str, bool] = {}
    for each in given:
        if (name := each.get("name")) not in names:
            what = f"there is no output {quoted(name)}; outputs: {', '.join(names)}"
            raise InvalidRequestError(what, param="outputs")
        found[str(name)] = bool(_parameters(each, "outputs").get("binary_data", usual))
    return found


def _stacked(arrays: Sequence[Array]) -> Array:
    """Return arrays as one, padded with zeros to the longest."""
    longest = max(len(each) for each in arrays)
    stacked = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.float32)
    for row, each in zip(stacked, arrays, strict=True):
        row[: len(each)] = each
    return stacked


def _answer(about: Mapping[str, object], outputs: Mapping[str, Array], binary: Mapping[str, bool]) -> Result:
    """Return the response; binary outputs follow the JSON, in order."""
    told: list[dict[str, object]] = []
    parts: list[bytes] = []
    for name, array in outputs.items():
        entry: dict[str, object] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
        if binary[name]:
            parts.append(array.astype("<f4").tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = array.ravel().tolist()
        told.append(entry)
    answer = {**about, "outputs": told}
    if not parts:
        return answer
    head = json.dumps(answer).encode()
    return Raw(head + b"".join(parts), "application/octet-stream", {LENGTH_HEADER: str(len(head))})


def described(served: Served) -> dict[str, object]:
    """Return the metadata of a model: its inputs and outputs, with -1 for dims of any size."""
    facts = served.model.facts
    inputs = [{"name": TEXT, "datatype": "BYTES", "shape": [-1]}]
    inputs += [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in (IDS, MASK)]
    dims = {each.name: [dim if isinstance(dim, int) else -1 for dim in each.dims] for each in facts.outputs}
    outputs = [{"name": name, "datatype": "FP32", "shape": [-1, *found]} for name, found in dims.items()]
    return {"name": served.name, "versions": ["1"], "platform": "txport", "inputs": inputs, "outputs": outputs}


def server() -> dict[str, object]:
    """Return the metadata of the server."""
    return {"name": "txport", "version": __version__, "extensions": EXTENSIONS}


TENSORS = {"type": "object", "required": ["model_name", "outputs"]}
ENDPOINTS = (
    Endpoint(
        "/v2/models/{model}/infer", "Run an encoder-only model, as the Open Inference Protocol", run, TENSOR_FIELDS,
        TENSORS, model_of=lambda call: call.models.get(call.path["model"]),
    ),
)  # fmt: skip
