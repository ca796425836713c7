"""Interface of all checkpoint formats: the config of a folder's model, its tensors, and rules to convert them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import safetensors
from safetensors import safe_open
from torch import Tensor

from txport.checkpoints.folder import Lora, find_folder, split_loras, weight_files
from txport.checkpoints.pooling import EMBEDDING
from txport.checkpoints.sources.pickles import kind_of, read_pickle
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, brief, quoted
from txport.models.config import Config, read_config
from txport.models.facts import Facts
from txport.models.generation import NO_DEFAULTS, Defaults, search_defaults
from txport.models.names import CONFIG, GENERATION, PICKLES
from txport.models.rules import Rule


def held(tensors: Mapping[str, Tensor]) -> Weights:
    """Return tensors that are already in memory as `Weights`."""
    return Weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)


def no_defaults(facts: Facts) -> Defaults:
    """Return no search defaults, for a checkpoint without any."""
    return NO_DEFAULTS


def generation(folder: Path, facts: Facts) -> Defaults:
    """Return the search defaults of `generation_config.json` or of the config; for encoder-only models, the pooling."""
    if not facts.generates:
        values = read_config(folder / GENERATION) if (folder / GENERATION).is_file() else {}
        return Defaults({name: values[name] for name in sorted(EMBEDDING) if name in values}, {})
    return search_defaults(read_config(folder / (GENERATION if (folder / GENERATION).is_file() else CONFIG)), facts)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint as stored in its files.

    `rules` convert its tensors to the model's; `weights` opens them, by the names in the files. `generation` returns
    the default search options. Errors about weights name the file or folder `place`. `lines` are the lines of the
    user's rules: number of the rule -> "txport.toml line 7". `texts` returns the text files of a bundle if they are not
    made from files of transformers. `original` is what can run the original model: "transformers", "none" if txport's
    own module is the original, or "" if only the user knows it. `quantised` says how another tool has quantised it.
    `loras` are merged with the tensors.
    """

    config: Config
    rules: tuple[Rule, ...]
    weights: Callable[[], Weights]
    place: Path
    generation: Callable[[Facts], Defaults] = field(default=no_defaults)
    lines: Mapping[int, str] = field(default_factory=dict)
    texts: Callable[[], Mapping[str, Path | str]] | None = None
    original: str = ""
    quantised: str = ""
    loras: tuple[Lora, ...] = ()


class Format(Protocol):
    """A checkpoint format, which is a module of this package."""

    def recognises(self, folder: Path) -> bool:
        """Return whether a folder has this format."""
        ...

    def read(self, folder: Path) -> Source:
        """Read a folder; raise `ConfigError` or `CheckpointError`, whose message names the file."""
        ...


# the first one that recognises a folder reads it
FORMATS = ("toml", "ctranslate2.folder", "marian.folder", "fairseq", "opennmt", "native", "hugging_face")


def read_source(folder: Path) -> Source:
    """Read a checkpoint folder; raise `ConfigError` or `CheckpointError` if its files are not those of a model."""
    for name in FORMATS:
        found: Format = importlib.import_module(f"{__package__}.{name}")
        if found.recognises(folder):
            return found.read(folder)
    raise ConfigError(f"{folder / CONFIG} names no architecture, and nothing else tells who wrote it")


def read_named(name: str) -> Source:
    """Read a checkpoint by its name, with its LoRAs; raise as `find_folder` and `read_source`."""
    from txport.checkpoints.sources.lora import merged

    return merged(read_source(find_folder(name)), split_loras(name)[1])


def place_of(folder: Path) -> Path:
    """Return the path that errors about tensors name: the weight file, or the folder if there are several."""
    try:
        files = weight_files(folder)
    except CheckpointError:  # the error is raised when they are read
        return folder
    return files[0] if len(files) == 1 else folder


def read_weights(folder: Path, at: str = "") -> Weights:
    """Return the tensors of a folder by their names in its files, which are mapped into memory.

    `at` states where the tensors are in pickles: keys separated by dots. Raises `CheckpointError` if two files have a
    tensor of the same name.
    """
    parts: list[Weights] = []
    names: set[str] = set()
    for path in weight_files(folder):
        part = read_pickle(path, at) if path.suffix in PICKLES else read_safetensors(path)
        if twice := names & part.shapes.keys():
            raise CheckpointError(f"{path} holds {quoted(min(twice))}, which another file of {folder} holds too")
        parts.append(part)
        names |= part.shapes.keys()
    return Weights.joined(parts)


def read_safetensors(path: Path) -> Weights:
    """Return the tensors of a safetensors file; raise `CheckpointError` if it is invalid."""
    with _whole(path), safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    def read(name: str) -> Tensor:
        """Map the file anew: its pages in memory are given back with the tensor."""
        with _whole(path), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    return Weights(shapes, read)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Convert errors of safetensors to `CheckpointError`, and name the file."""
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError, AttributeError) as error:
        kind = kind_of(path)
        reason = f"it is {kind}" if kind else brief(error)
        raise CheckpointError(f"{path} is not a whole safetensors file: {reason}") from error
