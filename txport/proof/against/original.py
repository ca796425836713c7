"""The original: a module from the user's code with the weights of the checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from txport.checkpoints.adapters.adapted import computing, line_of
from txport.checkpoints.adapters.load import imported, running
from txport.checkpoints.checkpoint import is_large
from txport.checkpoints.folder import code_name
from txport.checkpoints.weights.streamed import is_streamed, stay, widen
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, brief, quoted
from txport.models.facts import LOGITS, SENTENCE, Facts, Task
from txport.proof.against.batches import Batch
from txport.proof.faults.calls import Record, record_calls
from txport.system import memory
from txport.system.machine import is_out_of_memory

RUN = "run"  # the function in a user's file that calls the module
NARROW = (torch.float32, torch.bfloat16, torch.float16)
NAMED = 3  # maximum number of tensors of each kind in an error

Run = Callable[[nn.Module, Batch], object]


@dataclass(frozen=True)
class Original:
    """A module in evaluation mode, and the function that runs it.

    `names`: the module's name of a tensor -> its name in the checkpoint's files. `masks`: True if `run` accepts a
    padding mask.
    """

    name: str
    module: nn.Module
    run: Run
    names: Mapping[str, str]
    masks: bool

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its floating-point parameters; float32 if it has none."""
        return next((each.dtype for each in self.module.parameters() if each.is_floating_point()), torch.float32)

    def widen(self, given: Batch) -> tuple[object, list[str]]:
        """Convert the module to float64, or to float32 if it fails in float64.

        The weights of a large one stay as they are, and each is converted when it is used, if the module can run so.
        Returns the module's result for the batch, and the names of functions that still compute in float32 or less.
        Raises `CheckpointError` if it can't run in either.
        """
        if may_stream(self.module):
            widen(self.module, torch.float64)
            with suppress(CheckpointError), Narrow() as narrow:
                result = self.give(given)
                if not any(each.isnan().any() for each in tensors_in(result)):
                    return result, list(narrow.names)
            hold_weights(self.module)
        self.module.double()
        try:
            with Narrow() as narrow:
                return self.give(given), list(narrow.names)
        except CheckpointError:
            self.module.float()
            return self.give(given), []

    @torch.inference_mode()
    def give(self, given: Batch) -> object:
        """Run the module on a batch and return its result; raise `CheckpointError`, with the line, if it fails."""
        try:
            with computing(self.dtype):
                return self.run(self.module, given.to(self.dtype))
        except (CheckpointError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                raise
            what = f"{self.name} fails in {self.dtype}: {type(error).__name__}: {brief(error)}"
            raise CheckpointError(f"{what}{line_of(error)}") from error

    def outputs(self, given: Batch, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the module on a batch and return the outputs that the import (`expected`) has too: see `chosen`."""
        return self.chosen(self.give(given), expected)

    def chosen(self, found: object, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs in a result of the module that the import (`expected`) has too, by name.

        Raises `CheckpointError` if there are none, and for wrong shapes, NaN or infinity. Only logits may be -inf, for
        the same tokens at all positions.
        """
        several = list(tensors_in(found))
        if not several:
            raise CheckpointError(f"{self.name} gives no tensor but a {type(found).__name__}; the import gives logits")
        outputs: dict[str, Tensor] = {}
        left = several
        for name, like in expected.items():
            given_as = [] if name == SENTENCE else left  # another vector may have its shape
            if isinstance(found, Mapping) and isinstance(found.get(name), Tensor):
                given_as = [found[name]]
            chosen = next((each for each in given_as if _alone(each, like).shape == like.shape), None)
            if chosen is not None:
                outputs[name] = _alone(chosen, like).detach().to(like.dtype)
                left = [each for each in left if each is not chosen]
            elif len(expected) == 1 or name == LOGITS:
                shapes = " and ".join(str(tuple(each.shape)) for each in several[:NAMED])
                raise CheckpointError(
                    f"{self.name} gives a tensor of shape {shapes}, the import gives {name} of {tuple(like.shape)}"
                )
        if not outputs:
            raise CheckpointError(f"{self.name} gives none of the import's outputs: {', '.join(expected)}")
        for name, each in outputs.items():
            if not torch.isfinite(each).all() and not (name == LOGITS and _bars_tokens(each)):
                raise CheckpointError(f"{self.name} gives {name} with NaN or infinity")
        return outputs


def _alone(given: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with a last dim of size 1 added if the import's has one: there is one label."""
    return given[..., None] if (*given.shape, 1) == like.shape else given


def _bars_tokens(logits: Tensor) -> bool:
    """Return True if all non-finite values are -inf, for the same tokens at all positions, but not for all tokens."""
    infinite = (logits == -torch.inf).flatten(0, -2)
    whole = infinite.all(0)
    is_all = torch.equal(infinite.any(0), whole) and bool((logits.isfinite() | (logits == -torch.inf)).all())
    return is_all and not bool(whole.all())


def hold_weights(*modules: nn.Module) -> None:
    """Convert all weights of large modules at once; raise `OutOfMemoryError` if they don't fit in memory."""
    large = [module for module in modules if is_streamed(module)]
    size = sum(each.numel() * each.element_size() for module in large for each in module.parameters())
    memory.require(size, "the comparison with all weights in float64")
    for module in large:
        stay(module)


def may_stream(module: nn.Module) -> bool:
    """Return whether a module is so large that its weights are converted when they are used; scripts have no hooks."""
    plain = not any(isinstance(each, ScriptModule) for each in module.modules())
    return is_large(module) and plain and all(each.is_floating_point() for each in module.parameters())


def load_module(name: str, weights: Weights, facts: Facts, place: object) -> Original:
    """Load `model.py:NAME`: execute the file; NAME is a class or a function that returns the module, or the module.

    The module receives the tensors of the checkpoint at `place` by its names for them. Raises `CheckpointError` if the
    file fails, NAME returns no usable module, or its tensors differ from the checkpoint's.
    """
    found = code_name(name)
    assert found is not None
    path, variable = found
    with running(f"{path} does not run"):
        file = imported(path)
        made = getattr(file, variable, None)
        run = getattr(file, RUN, None)
    module = _made(made, f"{variable} of {path}")
    if run is not None and not callable(run):
        raise CheckpointError(f"{RUN} of {path} must be a function, got {quoted(run)}")
    module = module.cpu().float().eval()
    names = fill(module, weights, f"{variable} of {path}", place)
    if run is None and facts.has_token_types:
        what = f"{path} needs a function {RUN}(module, ids, mask, types)"
        raise CheckpointError(f"{what}: tokens of the import have types")
    how = PLAIN[facts.task] if run is None else _told(run, facts)
    return Original(f"{path.name}:{variable}", module, how, names, masks=run is not None and not facts.is_causal)


def _made(made: object, what: str) -> nn.Module:
    """Return the module that a class or a function without arguments returns; a module is returned as it is."""
    if made is None:
        raise CheckpointError(f"{what} must be a class or a function that gives a torch.nn.Module, and is not there")
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise CheckpointError(f"{what} must be a class or a function that gives a torch.nn.Module, got a "
                                  f"{type(made).__name__}")  # fmt: skip
        try:
            inspect.signature(made).bind()
        except TypeError as error:
            fix = "name a function in the same file that needs none and gives the module"
            raise CheckpointError(f"{what} needs arguments ({brief(error)}); {fix}") from error
        except ValueError:  # without a signature
            pass
        with running(f"{what} fails"):
            made = made()
    if not isinstance(made, nn.Module):
        raise CheckpointError(f"{what} must give a torch.nn.Module, and gives a {type(made).__name__}")
    tensors = [*made.parameters(), *made.buffers()]
    if any(each.is_meta for each in tensors):
        raise CheckpointError(f"{what} gives a module on the meta device; make it on the CPU")
    if any(is_lazy(each) for each in tensors):
        raise CheckpointError(f"{what} gives a module with lazy parts, which have no shape yet; run it once there")
    return made


@torch.no_grad()
def fill(module: nn.Module, weights: Weights, what: str, place: object) -> dict[str, str]:
    """Copy the tensors of a checkpoint into a module by name; return the module's names -> the names in the files.

    A prefix is added to or removed from the module's names if more of them match then. Buffers may be missing, and so
    may tensors that are tied to one in the files. Raises `CheckpointError` if other tensors are missing, or if shapes
    differ.
    """
    state = module.state_dict(keep_vars=True)
    names = _prefixed(list(state), list(weights.shapes))
    there = {id(state[name]) for name in names}
    parameters = {name for name, each in state.items() if isinstance(each, nn.Parameter)}
    missing = [name for name in parameters if name not in names and id(state[name]) not in there]
    wrong = [name for name, of in names.items() if tuple(state[name].shape) != weights.shapes[of]]
    if missing or wrong:
        shapes = (f"{each} is {tuple(state[each].shape)}, there {weights.shapes[names[each]]}" for each in wrong)
        told = [*shapes, *(f"{each} {tuple(state[each].shape)} is missing" for each in sorted(missing))]
        more = f"; and {len(told) - NAMED} more" if len(told) > NAMED else ""
        raise CheckpointError(f"{what} has other tensors than {place}: {'; '.join(told[:NAMED])}{more}")
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    if strange := [name for name in names if id(state[name]) not in own]:
        copied = f"state_dict of {what} gives a copy of {strange[0]}"
        raise CheckpointError(f"{copied}, which no weights can be loaded into; name a module that gives its own")
    for name, of in names.items():
        with running(f"{name} of {what} does not take the checkpoint's numbers"):
            state[name].copy_(weights[of])
    return names


def _prefixed(own: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """Return names of a module -> names in the files, with the prefix, of either, for which most names match."""
    known = set(given)
    prefixes = {"", *(_starts(given)), *(f"-{each}" for each in _starts(own))}
    ways = ({name: to for name in own if (to := _renamed(name, each)) in known} for each in sorted(prefixes))
    return max(ways, key=len)


def _starts(names: Sequence[str]) -> set[str]:
    """Return the beginnings of names up to each of the first three dots."""
    parts = (name.split(".") for name in names)
    return {".".join(each[:count]) + "." for each in parts for count in range(1, min(len(each), 4))}


def _renamed(name: str, prefix: str) -> str:
    """Return a name with a prefix added, or, if the prefix begins with "-", removed."""
    return name.removeprefix(prefix[1:]) if prefix.startswith("-") else prefix + name


# ------------------------------------------------------------------------------------------ how modules are called
PLAIN: dict[Task, Run] = {
    "seq2seq": lambda module, given: module(given.source, given.target),
    "causal": lambda module, given: module(given.source),
    "encode": lambda module, given: module(given.source),
}


def _told(run: Callable[..., object], facts: Facts) -> Run:
    """Return a function that calls `run` of the user's file with the arguments of the task."""
    if facts.is_encoder_decoder:
        return lambda module, given: run(module, given.source, given.mask, given.target)
    if facts.has_token_types:
        size = facts.vocabulary.size
        return lambda module, given: run(module, given.source % size, given.mask, given.source // size)
    if not facts.generates:
        return lambda module, given: run(module, given.source, given.mask)
    return lambda module, given: run(module, given.source)


def require_used(original: Original, used: Sequence[str], place: object) -> None:
    """Raise `CheckpointError` if the import is made from tensors that the original does not have."""
    taken = set(original.names.values())
    left = [name for name in used if name not in taken]
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        told = ", ".join(quoted(name)[1:-1] for name in left[:NAMED])
        raise CheckpointError(f"{original.name} has no tensor for {told}{more} of {place}, which the import needs")


# ------------------------------------------------------------------------------- numbers in float32 or less
class Narrow(TorchFunctionMode):
    """Collect the names of functions whose inputs or outputs are rounded numbers of a narrow dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> object:
        """See `TorchFunctionMode`."""
        found = function(*args, **(options or {}))
        name = getattr(function, "__name__", "")
        if name not in ("", "__get__") and name not in self.names:
            several = tensors_in((args, options or {}, found))
            if any(each.dtype in NARROW and is_rounded(each.detach()) for each in several):
                self.names[name] = None
        return found


@torch.no_grad()
def is_rounded(values: Tensor) -> bool:
    """Return whether values were rounded to float32: all are exact in float32, and some not in few digits."""
    values = values[torch.isfinite(values)].double()
    is_float32 = torch.equal(values.float().double(), values)
    return is_float32 and not bool(((values.bfloat16().double() == values) | (values == values.round())).all())


def rounded_tables(module: nn.Module, known: set[str]) -> Iterator[str]:
    """Yield the names of tensors that were rounded to float32, except `known` ones, which both models have."""
    for name, each in (*module.named_buffers(), *module.named_parameters()):
        if name not in known and each.is_floating_point() and is_rounded(each.detach()):
            yield name


# ------------------------------------------------------------------------------------------ calls of its modules
@contextmanager
def watching(module: nn.Module) -> Iterator[Record]:
    """Record the calls of all modules while the original runs in this context, those that return numbers.

    Tensors are copied, since later code may change them in place. Scripted modules have no hooks.
    """

    def copied(*values: object) -> list[Tensor]:
        return [each.detach().clone() for each in tensors_in(values)]

    def result(output: object) -> Tensor | None:
        return next((each for each in copied(output) if each.is_floating_point()), None)

    parts = [(name, each) for name, each in module.named_modules() if not isinstance(each, ScriptModule)]
    with record_calls(parts, copied, result) as record:
        yield record
    for name, calls in record.items():
        record[name] = [each for each in calls if hasattr(each, "result")]


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield all tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_in(each)
