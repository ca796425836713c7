"""What every format of checkpoints gives: the model that a folder is of, and how its tensors become the model's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from safetensors import safe_open
from torch import Tensor

from txport.errors import CheckpointError, ConfigError, brief, quoted
from txport.models.config import Config, read_config
from txport.models.facts import Facts
from txport.models.generation import search_defaults
from txport.models.names import CONFIG, GENERATION, PICKLES, weight_files
from txport.models.sources.pickles import read_pickle
from txport.models.weights.rules import Rule
from txport.models.weights.values import Weights


def held(tensors: Mapping[str, Tensor]) -> Weights:
    """Tensors that are in memory already."""
    return Weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)


def no_defaults(facts: Facts) -> Mapping[str, Any]:
    """Of a checkpoint that does not say how to search."""
    return {}


def generation(folder: Path, facts: Facts) -> Mapping[str, Any]:
    """How a model searches: by `generation_config.json`, or without one by its config; how an encoder pools."""
    if facts.task == "encode":
        values = read_config(folder / GENERATION) if (folder / GENERATION).is_file() else {}
        return {name: values[name] for name in ("pooling", "normalize") if name in values}
    return search_defaults(read_config(folder / (GENERATION if (folder / GENERATION).is_file() else CONFIG)), facts)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint as its files have it.

    `rules` turn its tensors into the model's; `weights` opens them, by the names in the files. `generation` gives how
    the model searches unless it is told otherwise. Errors about weights name the file or folder `place`. `lines` says
    where the rules of the user's own are written: number of the rule -> "txport.toml line 7". `texts` gives the text
    files of a bundle, where other files than transformers' say them.
    """

    config: Config
    rules: tuple[Rule, ...]
    weights: Callable[[], Weights]
    place: Path
    generation: Callable[[Facts], Mapping[str, Any]] = field(default=no_defaults)
    lines: Mapping[int, str] = field(default_factory=dict)
    texts: Callable[[], Mapping[str, Path | str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way in which checkpoints are written: whether a folder is of it, and what it says.

    `read` raises `ConfigError` or `CheckpointError`, whose message names the file.
    """

    recognises: Callable[[Path], bool]
    read: Callable[[Path], Source]


# modules of this package; the first that recognises a folder reads it
FORMATS = ("toml", "ctranslate2.folder", "marian.folder", "fairseq", "opennmt", "eole", "native", "hugging_face")


def read_source(folder: Path) -> Source:
    """What the files of a checkpoint say; `ConfigError` or `CheckpointError` for what can't be a model's."""
    for name in FORMATS:
        found: Format = importlib.import_module(f"{__package__}.{name}").FORMAT
        if found.recognises(folder):
            return found.read(folder)
    raise ConfigError(f"{folder / CONFIG} names no architecture, and nothing else tells who wrote it")


def place_of(folder: Path) -> Path:
    """What an error about tensors names: their file, or the folder of several."""
    try:
        files = weight_files(folder)
    except CheckpointError:  # which is told where they are read
        return folder
    return files[0] if len(files) == 1 else folder


def read_weights(folder: Path, at: str = "") -> Weights:
    """The tensors of a folder by their names in its files, one or several, which are mapped into memory.

    `at` says where in pickles they are: keys with dots between them.
    """
    nothing: dict[str, Tensor] = {}
    found = Weights({}, nothing.__getitem__)
    for path in weight_files(folder):
        part = read_pickle(path, at) if path.suffix in PICKLES else read_safetensors(path)
        if twice := found.shapes.keys() & part.shapes.keys():
            raise CheckpointError(f"{path} holds {quoted(min(twice))}, which another file of {folder} holds too")
        found = found.joined(part)
    return found


def read_safetensors(path: Path) -> Weights:
    """The tensors of a file."""
    with _whole(path):
        file: Any = safe_open(path, framework="pt")
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    def read(name: str) -> Tensor:
        with _whole(path):
            tensor: Tensor = file.get_tensor(name)
        return tensor

    return Weights(shapes, read)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Name the file in an error of safetensors."""
    try:
        yield
    except (safetensors.SafetensorError, OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {brief(error)}") from error
