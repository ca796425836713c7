"""Loading and saving checkpoints: folders with `config.json`, `model.safetensors` (or shards) and tokenizers.

A checkpoint is named by its path, by the name of one that ships with txport (`g2p-en`), by its name on Hugging Face's
hub, or as `preset:base`, which is a published size with random weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from txport.checkpoints.folder import PRESET, Lora, digest, find_folder, label, preset_config, preset_name
from txport.checkpoints.pooling import steps_of
from txport.checkpoints.sources.fitting import fitted, require_computed, without_head
from txport.checkpoints.sources.source import Source, read_named, read_source
from txport.checkpoints.weights.packed import PackedReader, packed_weights
from txport.checkpoints.weights.plan import Plan, first_names
from txport.checkpoints.weights.smoothing import Smoothing
from txport.checkpoints.weights.streamed import Read, Reader, Unfilled, copied, filled, in_memory, outline, streamed
from txport.checkpoints.weights.values import Weights
from txport.errors import BundleError, CheckpointError, TextError, TooLargeError, UnsupportedError, brief, quoted
from txport.models import architecture
from txport.models.config import Config
from txport.models.facts import Facts, Pooled
from txport.models.generation import published_names
from txport.models.model import Model
from txport.models.names import (
    CONFIG,
    GENERATION,
    LARGEST_SAMPLES,
    MODULES,
    SAMPLES,
    TARGET_TOKENIZER,
    TEXT,
    TOKENIZER,
    WEIGHTS,
)
from txport.models.sentence import MODULES_POOLING, has_weights, is_unit
from txport.models.smoothing import groups_of
from txport.system import memory
from txport.system.documents import DocumentError, read_lines, write_json
from txport.system.files import staged_files
from txport.system.memory import readable
from txport.text.convert import companions_of
from txport.text.load import tokenizer_of

logger = logging.getLogger(__name__)
Take = Callable[[str, Tensor], object]
FLOATS = {
    each
    for name in dir(torch)
    if isinstance(each := getattr(torch, name), torch.dtype) and each.is_floating_point and "float4" not in name
}
NAMED = 200  # maximum number of tensors in an error
MOST_MEMORY = 1 << 43  # bytes; no machine that runs one model has more
COPIES = 2  # number of copies of all weights in memory while loading
LARGEST_COPIES = 4  # number of copies of the largest tensor in memory while loading one tensor at a time
STREAMED_ABOVE = 50_000_000  # parameters


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to run in PyTorch, and its origin.

    The `outline` of a large model has no weights: `read` returns each one by its first name. `quantised` says how
    another tool has quantised it, and `packed` reads its matrices of 4 bits, by each of their names. `loras` are in it.
    The factors of `smoothing` are, too.
    """

    name: str
    outline: Model
    sha256: str
    folder: Path | None = None  # None for a preset
    generation: Mapping[str, object] = field(default_factory=dict)  # its default search options
    not_followed: Mapping[str, object] = field(default_factory=dict)  # its generation options that no search follows
    read: Read | None = None
    texts: Mapping[str, Path | str] | None = None  # tokenizer files by name; None for those in the folder
    quantised: str = ""
    packed: Mapping[str, PackedReader] = field(default_factory=dict)
    loras: tuple[Lora, ...] = ()
    smoothing: tuple[Smoothing, ...] = ()

    @cached_property
    def model(self) -> Model:
        """The model in float32; a large one reads each weight when it is used (see `models.weights.streamed`)."""
        return self.outline if self.read is None else streamed(self.outline, self.read)

    def in_memory(self, copies: int = 1) -> Checkpoint:
        """Return this checkpoint with all weights in memory; raise `OutOfMemoryError` if `copies` of them don't fit."""
        if self.read is None:
            return self
        memory.require(copies * 4 * size_of(self.outline), f"the model of {self.name}, all of it at once,")
        return replace(self, outline=filled(self.outline, self.read), read=None)

    @property
    def reader(self) -> Read | None:
        """A function that reads a weight by any of its names; None if the outline has all weights."""
        if self.read is None:
            return None
        first = first_names(self.outline)
        read = self.read
        return lambda name: read(first[name])

    @property
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """An iterator over the weights in float32 with their first names, loaded one at a time."""
        return ((name, self.tensor(name)) for name, _ in self.outline.named_parameters())

    def tensor(self, name: str) -> Tensor:
        """Return a weight in float32 by its first name."""
        if self.read is None:
            return self.outline.get_parameter(name).detach()
        return self.read(name).float()

    @property
    def config(self) -> Config:
        """The config of the model."""
        return self.outline.config

    @property
    def facts(self) -> Facts:
        """The facts about the model."""
        return self.outline.facts

    @property
    def described(self) -> dict[str, object]:
        """The manifest's entries about the model, as JSON values."""
        name = architecture.name_of(self.config)
        return {"architecture": name, "config": self.config.to_dict(), "facts": self.facts.to_dict()}

    @property
    def companions(self) -> dict[str, Path | str]:
        """The files that a bundle copies, by name: tokenizers and samples of real input; see `companions_of`."""
        if self.texts is not None:
            return dict(self.texts)
        return {} if self.folder is None else companions_of(self.folder)


def load_checkpoint(name: str) -> Checkpoint:
    """Load a checkpoint in float32 for inference; raise `CheckpointError` with all tensors that don't fit the config.

    The weights of a large model are checked by reading each of them once, and stay in their files.
    """
    if preset := preset_name(name):
        return random_checkpoint(preset)
    folder = find_folder(name)
    source = read_named(name)
    build = architecture.of(source.config).build
    model = build_empty(source.config)
    _require_memory(model, folder / CONFIG)
    weights, made = fitted(source, model)
    texts = companions_of(folder) if source.texts is None else source.texts()
    check_text(folder, model.facts, texts)
    defaults = source.generation(model.facts)
    for option, value in defaults.not_followed.items():
        logger.warning("%s: %s %s is not followed; outputs may differ for it", folder, option, quoted(value))
    made_of = partial(Checkpoint, label(name), sha256=digest(name), folder=folder, texts=texts)
    options = {**defaults.options, **_pooling_of(source.config)}
    made_of = partial(made_of, generation=options, not_followed=defaults.not_followed)
    packed = packed_weights(made, weights)
    packed = {name: packed[first] for name, first in first_names(model).items() if first in packed}
    made_of = partial(made_of, quantised=source.quantised, packed=packed, loras=source.loras)
    if is_large(model):
        model = outline(build, source.config)
        require_computed(source, weights, made, model)
        _take_in(made, weights, source, lambda name, tensor: None)
        read = partial(made.tensor, weights=weights)
        return made_of(model, read=read)
    with Unfilled():
        model = build(source.config)
    require_computed(source, weights, made, model)
    parameters = expected_tensors(model)
    _take_in(made, weights, source, lambda name, tensor: parameters[name].copy_(tensor))
    return made_of(model.eval())


def pooled(checkpoint: Checkpoint, pooling: str) -> Checkpoint:
    """Return a checkpoint whose graph pools: as "modules" of its folder say, or in another way, and then as they say.

    Raises `UnsupportedError` if there are no modules, or if they have weights for another pooling.
    """
    own = () if checkpoint.folder is None else steps_of(checkpoint.folder)
    own = getattr(checkpoint.config, "sentence", ()) or own
    if pooling == MODULES_POOLING and not own:
        raise UnsupportedError(f"{checkpoint.name} has no {MODULES} with a pooling; give {', '.join(get_args(Pooled))}")
    if pooling not in (MODULES_POOLING, *own[:1]) and has_weights(own):
        raise UnsupportedError(f"the layers of {checkpoint.name} are for the pooling {own[0]!r}, got {quoted(pooling)}")
    return with_steps(checkpoint, own if pooling == MODULES_POOLING else (pooling, *own[1:]))


def with_steps(checkpoint: Checkpoint, steps: tuple[str, ...]) -> Checkpoint:
    """Return a checkpoint whose graph makes vectors of texts by steps of `models.sentence` that have no weights.

    If the steps have weights, they must be those that it has. Raises `UnsupportedError` for a model without such
    vectors.
    """
    if getattr(checkpoint.config, "sentence", None) == steps:
        return checkpoint
    if checkpoint.facts.ability != "embed" or not hasattr(checkpoint.config, "sentence"):
        raise UnsupportedError(f"{checkpoint.name} is no encoder whose graph can pool; leave out pooling")
    changed: dict[str, Any] = {"sentence": steps}
    config = replace(checkpoint.config, **changed)
    build = architecture.of(config).build
    generation = {**checkpoint.generation, **_pooling_of(config)}
    if checkpoint.read is not None:
        return replace(checkpoint, outline=outline(build, config), generation=generation)
    with Unfilled():
        model = build(config)
    model.load_state_dict(checkpoint.outline.state_dict())
    return replace(checkpoint, outline=model.eval(), generation=generation)


def smoothed(checkpoint: Checkpoint, smoothing: tuple[Smoothing, ...]) -> Checkpoint:
    """Return a checkpoint with the factors of `smoothing` in its weights; it computes the same to the last bit.

    A checkpoint that has them already stays as it is. Raises `CheckpointError` if they do not fit it.
    """
    if checkpoint.smoothing == smoothing:
        return checkpoint
    assert not checkpoint.smoothing, "a checkpoint is smoothed once"
    factors = _factors(checkpoint, smoothing)

    def scaled(name: str) -> Tensor:
        values = checkpoint.tensor(name)
        return values * factors[name] if name in factors else values

    if checkpoint.read is not None:
        read = Reader.of(checkpoint.read)

        def rows(name: str, index: Any) -> Tensor:
            return scaled(name)[index] if name in factors else read.rows(name, index).float()

        return replace(checkpoint, read=Reader(scaled, rows), smoothing=smoothing)
    model = copied(checkpoint.outline)
    with torch.no_grad():
        for name in factors:
            model.get_parameter(name).copy_(scaled(name))
    return replace(checkpoint, outline=model, smoothing=smoothing)


def _factors(checkpoint: Checkpoint, smoothing: tuple[Smoothing, ...]) -> dict[str, Tensor]:
    """Return what each weight is multiplied by, by its first name."""
    shapes = {name: tuple(each.shape) for name, each in checkpoint.outline.named_parameters()}
    free = {(group.made_by, group.read_by) for group in groups_of(checkpoint.outline)}
    factors: dict[str, Tensor] = {}
    for each in smoothing:
        by = torch.from_numpy(np.ldexp(np.float32(1), np.frombuffer(each.exponents, np.int8)))
        if (each.made_by, each.read_by) not in free or len(by) != shapes[each.read_by[0]][1]:
            names = ", ".join((*each.made_by, *each.read_by))
            raise CheckpointError(f"{len(by)} factors of {names} would change what {checkpoint.name} computes")
        own = {name: 1 / (by if len(shapes[name]) == 1 else by[:, None]) for name in each.made_by}
        for name, factor in (*own.items(), *dict.fromkeys(each.read_by, by).items()):
            factors[name] = factors[name] * factor if name in factors else factor
    return factors


def _pooling_of(config: Config) -> dict[str, Any]:
    """Return the options of `Encoder.embed` that a graph with steps to vectors has."""
    steps = getattr(config, "sentence", ())
    return {"pooling": steps[0], "normalize": is_unit(steps)} if steps else {}


def build_empty(config: Config) -> Model:
    """Build a model on the meta device: its tensors have shapes and no data."""
    with torch.device("meta"), Unfilled():
        return architecture.of(config).build(config)


def config_of(folder: Path) -> Config:
    """Return the config of a checkpoint; raise `ConfigError` if it is invalid."""
    return read_source(folder).config


def _require_memory(model: Model, path: Path) -> None:
    """Raise `TooLargeError` if a model is too large for any machine, `OutOfMemoryError` if it is for this one."""
    sizes_of = [4 * each.numel() for each in (*model.parameters(), *model.buffers())]
    size = sum(sizes_of)
    largest = max(sizes_of)
    if size > MOST_MEMORY:
        sizes = f"{readable(size)} in fp32, the most that is taken is {readable(MOST_MEMORY)}"
        raise TooLargeError(f"{path}: a model of these sizes needs {sizes}; check its width and its vocabularies")
    memory.require(LARGEST_COPIES * largest if is_large(model) else COPIES * size, f"the model of {path}")


def size_of(model: nn.Module) -> int:
    """Return the number of parameters of a model; tied parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def is_large(model: nn.Module) -> bool:
    """Return True if a model's weights are read when they are used, never all at once."""
    return size_of(model) > STREAMED_ABOVE


def random_checkpoint(preset: str) -> Checkpoint:
    """Return a preset with seeded random weights, for benchmarks and tests; they are the same on every machine."""
    config = preset_config(preset)
    name = PRESET + preset
    model = outline(architecture.of(config).build, config)
    read = drawn(model)
    if is_large(model):
        return Checkpoint(name, model, digest(name), read=read)
    return Checkpoint(name, filled(model, read, is_copy=False), digest(name))


def fill(model: Model, seed: int = 0) -> None:
    """Set the weights of a model to the random weights that `drawn` returns for a seed."""
    read = drawn(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(read(name))


def drawn(model: Model, seed: int = 0) -> Read:
    """Return a function that generates random weights by name: matrices are uniform, norm weights 1 and biases 0.

    Matrices have the variance that `Model.initialise` gives them. PyTorch's normal samples are rounded differently
    under each instruction set. All weights come from one sequence of random numbers, each from its own offset.
    """
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    tables = {name for name in shapes if model.is_table(name)}
    random = [name for name, shape in shapes.items() if len(shape) > 1 or name in tables]
    places = dict(zip(random, accumulate((math.prod(shapes[name]) for name in random), initial=0), strict=False))

    def read(name: str) -> Tensor:
        shape = shapes[name]
        if name not in places:
            return torch.full(shape, 0.0 if model.is_bias(name) else 1.0)
        bits = np.random.PCG64(np.random.SeedSequence(seed))
        bits.advance(places[name] // 2)  # each 64-bit number is used for two float32
        rng = np.random.Generator(bits)
        rng.random(places[name] % 2, dtype=np.float32)
        variance = 1 / model.facts.width if name in tables else 2 / sum(shape) * model.gain(name) ** 2
        uniform = rng.random(shape, dtype=np.float32)
        uniform *= 2
        uniform -= 1
        uniform *= np.float32((3 * variance) ** 0.5)
        return torch.from_numpy(uniform)

    return read


def save_checkpoint(
    out: str | Path,
    model: Model,
    tokenizer: str | None = None,
    target_tokenizer: str | None = None,
    *,
    half: bool = False,
    usage: str | None = None,
    samples: str | None = None,
    generation: Mapping[str, object] | None = None,
) -> None:
    """Write a checkpoint into a folder atomically; with `half`, the weights are stored in float16.

    `tokenizer` is the JSON of the source tokenizer, and of the target tokenizer if `target_tokenizer` is None; `usage`
    is the text of `text.json`. An older checkpoint in the folder is replaced, and its tokenizers and `text.json` are
    removed if none are given, because they may not fit this model. `samples` is the text of `samples.txt`, `generation`
    the default search options; if they are None, those in the folder stay, as do all other files. Raises `OutputError`
    if the folder can't be written.
    """
    weights = {name: tensor.detach().contiguous() for name, tensor in expected_tensors(in_memory(model)).items()}
    texts = {TOKENIZER: tokenizer, TARGET_TOKENIZER: target_tokenizer, TEXT: usage}
    texts |= {SAMPLES: samples} if samples is not None else {}
    search = {GENERATION: published_names(generation)} if generation else {}
    replaced = (CONFIG, WEIGHTS, *texts, *([] if generation is None else [GENERATION]))
    with staged_files(Path(out), replaced) as folder:
        write_json(folder / CONFIG, {"architecture": architecture.name_of(model.config), **model.config.to_dict()})
        _save({name: tensor.half() if half else tensor for name, tensor in weights.items()}, folder / WEIGHTS)
        for name, values in search.items():
            write_json(folder / name, values)
        for name, text in texts.items():
            if text is not None:
                (folder / name).write_text(text, encoding="utf-8")


def _save(weights: dict[str, Tensor], file: Path) -> None:
    """Write weights as safetensors, whose own error becomes `OSError`."""
    try:
        save_file(weights, file)
    except SafetensorError as error:
        raise OSError(brief(error)) from error


def expected_tensors(model: Model) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name; a tied tensor has only its first name."""
    return dict(model.named_parameters())  # named_parameters yields a shared parameter once


@torch.no_grad()
def _take_in(made: Plan, weights: Weights, source: Source, take: Take) -> None:
    """Pass each tensor of a model to `take`; raise `CheckpointError` with all tensors that don't fit."""
    problems = check_tensors(made, weights, source, take)
    if problems:
        if reason := without_head(made):
            raise CheckpointError(f"{source.place} {reason}")
        more = [f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else []
        listed = "; ".join([*sorted(problems)[:NAMED], *more])
        raise CheckpointError(f"{source.place} does not fit its config: {listed}")


def check_tensors(made: Plan, weights: Weights, source: Source, take: Take = lambda name, tensor: None) -> list[str]:
    """Return a message for each tensor that doesn't fit; pass each tensor that fits to `take` with its name."""
    problems = made.problems(source.lines)
    doubles = made.doubles(source.lines or {})  # already reported, with their lines
    for name in (each for each in made.fitting if each not in doubles):
        try:
            tensor = made.tensor(name, weights)
        except CheckpointError:  # an error of the file, not of the tensor
            raise
        except ValueError as error:
            problems.append(str(error))
            continue
        if wrong := unfit(tensor):
            problems.append(f"{name} {wrong}")
        else:
            take(name, tensor)
    return problems


def unfit(tensor: Tensor) -> str:
    """Return the reason why a tensor can't be a weight; empty if it can."""
    if tensor.dtype not in FLOATS:
        return f"has type {tensor.dtype}, expected a floating-point type"
    if not tensor.numel():
        return ""
    ends = torch.stack(tensor.float().aminmax() if tensor.itemsize == 1 else tensor.aminmax())  # NaN if there is one
    return "" if ends.isfinite().all() else "holds NaN or infinity"


def check_text(folder: Path, facts: Facts, texts: Mapping[str, Path | str]) -> None:
    """Raise `CheckpointError` unless the tokenizers fit the model and it accepts the texts in `samples.txt`."""
    try:
        tokenizer = tokenizer_of(texts, folder, facts)
    except BundleError as error:
        raise CheckpointError(str(error)) from error
    path = folder / SAMPLES
    try:
        samples = read_lines(path, LARGEST_SAMPLES) if path.is_file() else []
        longest = max((len(tokenizer.encode(sample)) for sample in samples), default=0)
    except (DocumentError, TextError) as error:
        raise CheckpointError(f"{path} must hold text that the model takes: {error}") from error
    if samples and facts.vocabulary is not facts.reads:
        raise CheckpointError(f"{path} must hold text that the model takes, and this one reads audio: remove it")
    if longest > facts.reads.longest:
        raise CheckpointError(f"{path} has a line of {longest} tokens, the model takes at most {facts.reads.longest}")
