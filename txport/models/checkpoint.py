"""A checkpoint: `config.json`, `model.safetensors` (or several, and an index) and perhaps tokenizers in one folder.

A checkpoint is named by its path, by the name of one that ships (`g2p-en`), or as `preset:base`, which
is a published size with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from txport.errors import BundleError, CheckpointError, ConfigError, TextError, quoted
from txport.models import architecture
from txport.models.config import Config
from txport.models.facts import Facts
from txport.models.model import Model
from txport.models.names import (
    CONFIG,
    LARGEST_SAMPLES,
    PRESET,
    SAMPLES,
    TARGET_TOKENIZER,
    TOKENIZER,
    WEIGHTS,
    digest,
    find_folder,
    label,
    preset_config,
    preset_name,
)
from txport.models.sources.source import Source, read_source
from txport.models.tokenizers.convert import companions_of
from txport.models.tokenizers.load import tokenizer_of
from txport.models.weights import own_names
from txport.system import memory
from txport.system.documents import DocumentError, read_text, write_json
from txport.system.files import staged_files
from txport.system.memory import readable

FLOATS = {
    each
    for name in dir(torch)
    if isinstance(each := getattr(torch, name), torch.dtype) and each.is_floating_point and "float4" not in name
}
NAMED = 200  # tensors in an error
MOST_MEMORY = 1 << 43  # bytes; no machine that runs one model has more
COPIES = 2  # of the weights that loading holds at once


@dataclass(frozen=True)
class Checkpoint:
    """A model ready to run in PyTorch, and where it came from."""

    name: str
    model: Model
    sha256: str
    folder: Path | None = None  # None for a preset
    generation: Mapping[str, Any] = field(default_factory=dict)  # how it searches unless told otherwise

    @property
    def config(self) -> Config:
        """What the model is made of."""
        return self.model.config

    @property
    def facts(self) -> Facts:
        """What is true of the model."""
        return self.model.facts

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of the model, as JSON values."""
        name = architecture.name_of(self.config)
        return {"architecture": name, "config": self.config.to_dict(), "facts": self.facts.to_dict()}

    @property
    def companions(self) -> dict[str, Path | str]:
        """What a bundle takes over, by file name: tokenizers, and samples of real input; see `companions_of`."""
        return {} if self.folder is None else companions_of(self.folder)


class Unfilled(TorchFunctionMode):
    """Modules that are made in this context leave their parameters as they are: a checkpoint fills them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """See `TorchFunctionMode`; functions that fill a tensor are those of `torch.nn.init`, or methods of it."""
        options = options or {}
        fills = function.__name__ in ("zero_", "fill_", "uniform_", "normal_", "kaiming_uniform_")
        return (args[0] if args else options["tensor"]) if fills else function(*args, **options)


def load_checkpoint(name: str) -> Checkpoint:
    """Load a checkpoint in float32, ready for inference; `CheckpointError` lists all that does not fit."""
    if preset := preset_name(name):
        return random_checkpoint(preset)
    folder = find_folder(name)
    source = read_source(folder)
    build = architecture.of(source.config).build
    with torch.device("meta"), Unfilled():
        model = build(source.config)
    _require_memory(model, folder / CONFIG)
    weights = _read_weights(source, folder, model)
    _check(source.place, expected_tensors(model), weights)
    _check_text(folder, model.facts)
    with Unfilled():
        model = build(source.config)
    model.load_state_dict(weights, strict=False)  # a tied weight is stored once; _check saw to the rest
    return Checkpoint(label(name), model.eval(), digest(name), folder, source.generation(model.facts))


def config_of(folder: Path) -> Config:
    """The config of a checkpoint; `ConfigError` for one that no model can have."""
    return read_source(folder).config


def _require_memory(model: Model, path: Path) -> None:
    """Raise `ConfigError` for a model that no machine can hold, `MemoryError` for one that this one can't."""
    size = sum(4 * each.numel() for each in (*model.parameters(), *model.buffers()))
    if size > MOST_MEMORY:
        sizes = f"{readable(size)} in fp32, the most that is taken is {readable(MOST_MEMORY)}"
        raise ConfigError(f"{path}: a model of these sizes needs {sizes}; check its width and its vocabularies")
    memory.require(COPIES * size, f"the model of {path}")


def random_checkpoint(preset: str) -> Checkpoint:
    """A published size with seeded random weights, for benchmarks and tests; the same on every machine."""
    config = preset_config(preset)
    with Unfilled():
        model = architecture.of(config).build(config)
    fill(model, np.random.default_rng(0))
    name = PRESET + preset
    return Checkpoint(name, model.eval(), digest(name))


@torch.no_grad()
def fill(model: Model, rng: np.random.Generator) -> None:
    """Random matrices as large as those of `Model.initialise`, but uniform; norms of weight 1, biases of 0.

    PyTorch's normal ones are rounded otherwise under each instruction set.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or model.is_table(name):
            variance = 1 / model.facts.width if model.is_table(name) else 2 / sum(parameter.shape)
            uniform = rng.random(tuple(parameter.shape), dtype=np.float32)
            parameter.copy_(torch.from_numpy((uniform * 2 - 1) * np.float32((3 * variance) ** 0.5)))
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def save_checkpoint(
    out: str | Path,
    model: Model,
    tokenizer: str | None = None,
    target_tokenizer: str | None = None,
    *,
    half: bool = False,
) -> None:
    """Write a checkpoint into a folder, whole or not at all; with `half`, the weights are stored in 16 bits.

    `tokenizer` is the JSON of the source's, which is also the target's if that has none of its own. An older
    checkpoint in the folder is replaced: its tokenizers too, which are removed if none are given, since they are not
    known to fit this model. All else in the folder stays. Raises `OutputError` for a place that can't be written.
    """
    weights = {name: tensor.detach().contiguous() for name, tensor in expected_tensors(model).items()}
    with staged_files(Path(out), (CONFIG, WEIGHTS, TOKENIZER, TARGET_TOKENIZER)) as folder:
        write_json(folder / CONFIG, {"architecture": architecture.name_of(model.config), **model.config.to_dict()})
        save_file({name: tensor.half() if half else tensor for name, tensor in weights.items()}, folder / WEIGHTS)
        for name, text in ((TOKENIZER, tokenizer), (TARGET_TOKENIZER, target_tokenizer)):
            if text is not None:
                (folder / name).write_text(text, encoding="utf-8")


def expected_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; one that is tied stands under its first name only."""
    return dict(model.named_parameters())  # named_parameters leaves out what it has seen


def _read_weights(source: Source, folder: Path, model: Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the names of the model."""
    weights = source.weights()
    try:
        return own_names(source.rules, weights, model)
    except ValueError as error:
        raise CheckpointError(f"{folder} does not fit its config: {error}") from error


def _check(path: Path, expected: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Report everything at once: missing, unexpected, wrongly shaped, not a number."""
    problems = [f"missing {name} {_shape(tensor)}" for name, tensor in expected.items() if name not in given]
    problems += [
        f"unexpected {quoted(name)[1:-1]} {_shape(tensor)}" for name, tensor in given.items() if name not in expected
    ]
    for name in expected.keys() & given.keys():
        if expected[name].shape != given[name].shape:
            problems.append(f"{name} has shape {_shape(given[name])}, expected {_shape(expected[name])}")
        elif given[name].dtype not in FLOATS:
            problems.append(f"{name} has type {given[name].dtype}, expected a floating-point type")
        elif not torch.isfinite(given[name].float()).all():  # float8 has no isfinite of its own
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        more = [f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else []
        raise CheckpointError(f"{path} does not fit its config: {'; '.join([*sorted(problems)[:NAMED], *more])}")


def _check_text(folder: Path, facts: Facts) -> None:
    """The tokenizers must be this model's, the samples text that it takes."""
    try:
        tokenizer = tokenizer_of(companions_of(folder), folder, facts)
    except BundleError as error:
        raise CheckpointError(str(error)) from error
    path = folder / SAMPLES
    try:
        samples = read_text(path, LARGEST_SAMPLES).splitlines() if path.is_file() else []
        longest = max((len(tokenizer.encode(sample)) for sample in samples), default=0)
    except (DocumentError, TextError) as error:
        raise CheckpointError(f"{path} must hold text that the model takes: {error}") from error
    if longest > facts.reads.longest:
        raise CheckpointError(f"{path} has a line of {longest} tokens, the model takes at most {facts.reads.longest}")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
