"""A user's module with the interface of `Model`, so that exporters, runtimes and proof can use it like one."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from txport.checkpoints.adapters.adapter import DIGIT, Adapter, AdapterConfig, StepInputs
from txport.errors import CheckpointError, TxportError, UnsupportedError, brief
from txport.models.facts import Owner, StateTensor
from txport.models.model import Decoded, Memory, Model, picked
from txport.models.ops import before_mask, causal_mask
from txport.system.machine import is_out_of_memory

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))  # folders without code of the user's


class Widening(TorchFunctionMode):
    """Replace float32 by float64 in the user's code, so that a reference in float64 has no step in float32."""

    def __torch_function__(self, function: Any, types: object, args: Any = (), options: Any = None) -> Any:
        """See `TorchFunctionMode`."""
        if function is Tensor.float:
            return args[0].double()
        wide = {name: _widened(each) for name, each in (options or {}).items()}
        return function(*map(_widened, args), **wide)


def _widened(value: object) -> object:
    return torch.float64 if value is torch.float32 else value


class Adapted(Model):
    """A module with its adapter. Parameters and buffers have the names that they have in the module.

    PyTorch's fast path for its own Transformer layers is off, because it skips padding and computes other outputs.
    """

    def __init__(self, module: nn.Module, adapter: Adapter) -> None:
        super().__init__(AdapterConfig(module=type(module).__name__), adapter.facts)
        self.module = module
        self.adapter = adapter

    @torch.inference_mode()
    def probe(self) -> None:
        """Run all functions of the adapter once, in the dtype of the weights.

        Raises `CheckpointError` if one fails, and `UnsupportedError` if the module calls a recurrent layer of PyTorch.
        """
        ids = torch.zeros(2, 4, dtype=torch.long)
        with _without_recurrence(self.module):
            if self.facts.is_causal:
                self.extend(ids, torch.ones_like(ids).bool(), torch.arange(4).expand(2, 4), self.empty_state(2))
            elif not self.facts.generates:
                self.infer(ids, torch.ones_like(ids).bool())
            else:
                self(ids, torch.tensor([4, 4]), ids)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """See `nn.Module`."""
        return self.module.named_parameters(*args, **options)

    def get_parameter(self, target: str) -> nn.Parameter:
        """See `nn.Module`."""
        return self.module.get_parameter(target)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        """See `nn.Module`."""
        return self.module.named_buffers(*args, **options)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, in which the module computes."""
        return next(each.dtype for each in self.parameters() if each.is_floating_point())

    def empty_state(self, rows: int) -> dict[StateTensor, Tensor]:
        """See `Model`."""
        like = next(self.parameters())
        return {each: like.new_zeros(each.shape(rows, 0), dtype=self.dtype) for each in self.facts.state}

    def encode_masked(self, source: Tensor, mask: Tensor | None) -> Memory:
        """See `Model`."""
        assert mask is not None
        states = self._encode(source, mask)
        self._require("encode", "states", states, ("B", "S", self.facts.width), (*source.shape, self.facts.width))
        return Memory(states, mask)

    def infer(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """See `Model`."""
        found = self._encode(source, mask)
        names = [each.name for each in self.facts.outputs]
        if isinstance(found, Mapping):
            if set(found) != set(names):
                raise CheckpointError(f"encode gives {', '.join(map(str, found))}, expected {', '.join(names)}")
            return tuple(found[name] for name in names)
        return found if isinstance(found, tuple) else (found,)

    def _encode(self, source: Tensor, mask: Tensor) -> Any:
        assert self.adapter.encode is not None
        with self._running("encode"):
            return self.adapter.encode(self.module, source, mask)

    def decode(self, tokens: Tensor, memory: Memory, state: Mapping[StateTensor, Tensor]) -> Decoded:
        """See `Model`."""
        assert memory.mask is not None
        kept = self._source_state(memory, state)
        states, mask, *tensors = (
            each if memory.rows is None else each[memory.rows] for each in (memory.states, memory.mask, *kept.values())
        )
        given = {
            "source": states,
            "source_seen": mask[:, None, None, :],
            "source_past": _pairs(tensors) if self.adapter.project is not None else (),
        }
        past = self._past(state)
        rows = tokens.shape[0]
        begin = past if self.adapter.has_caches else 0
        places = torch.arange(begin, past + tokens.shape[1], device=tokens.device)[None, :].expand(rows, -1)
        seen = causal_mask(past + tokens.shape[1] - begin, begin, tokens.device)[None, None]
        logits, grown = self._step(tokens, places, seen, state, given)
        state = {**kept, **grown}
        return Decoded(logits, {each: state[each] for each in self.facts.state}, {})

    def extend(
        self,
        tokens: Tensor,
        mask: Tensor,
        places: Tensor,
        state: Mapping[StateTensor, Tensor],
        *,
        wanted: Tensor | None = None,
    ) -> Decoded:
        """See `Model`."""
        past = self._past(state)
        length = tokens.shape[1]
        if not self.adapter.has_caches:
            before = (mask[:, :past].long().cumsum(1) - 1).clamp(min=0)
            places, past, length = torch.cat([before, places], 1), 0, past + length
        hidden = before_mask(length, past, tokens.device) & ~mask[:, None, None, :]
        seen = causal_mask(length, past, tokens.device) & ~hidden  # (B, 1, T, P + T)
        logits, grown = self._step(tokens, places, seen, state, {})
        return Decoded(picked(logits, wanted), {each: grown[each] for each in self.facts.state}, {})

    def _past(self, state: Mapping[StateTensor, Tensor]) -> int:
        return next(tensor.shape[2] for each, tensor in state.items() if each.owner == "row")

    def _source_state(self, memory: Memory, state: Mapping[StateTensor, Tensor]) -> dict[StateTensor, Tensor]:
        """Compute the keys and values of the source that are not cached yet; zeros if the adapter has no `project`."""
        tensors = self.facts.owned("source")
        rest = memory.states[:, state[tensors[0]].shape[2] :]
        if self.adapter.project is None:
            rows, length = rest.shape[:2]
            new = [rest.new_zeros(each.shape(rows, length)) for each in tensors]
        else:
            with self._running("project"):
                new = self._flat("project", self.adapter.project(self.module, rest), "source", *rest.shape[:2])
        return {each: torch.cat([state[each], one], 2) for each, one in zip(tensors, new, strict=True)}

    def _step(
        self, tokens: Tensor, places: Tensor, seen: Tensor, state: Mapping[StateTensor, Tensor], given: dict[str, Any]
    ) -> tuple[Tensor, dict[StateTensor, Tensor]]:
        """Return the logits of the new tokens, and the state tensors that belong to each row."""
        assert self.adapter.step is not None
        own = self.facts.owned("row")
        if not self.adapter.has_caches:
            return self._recompute(tokens, places, seen, state, given)
        inputs = StepInputs(tokens, places, seen, _pairs(state[each] for each in own), **given)
        with self._running("step"):
            found = self.adapter.step(self.module, inputs)
            if not isinstance(found, tuple) or len(found) != 2:
                raise CheckpointError(f"step must give logits and the caches, got {_described(found)}")
            present = self._flat("step", found[1], "row", tokens.shape[0], self._past(state) + tokens.shape[1])
        return found[0], dict(zip(own, present, strict=True))

    def _recompute(
        self, tokens: Tensor, places: Tensor, seen: Tensor, state: Mapping[StateTensor, Tensor], given: dict[str, Any]
    ) -> tuple[Tensor, dict[StateTensor, Tensor]]:
        """Run a module without caches on all tokens so far, which the state stores as two numbers per token."""
        assert self.adapter.step is not None
        high, low = self.facts.owned("row")
        past = state[high][:, 0, :, 0].long() * DIGIT + state[low][:, 0, :, 0].long()
        ids = torch.cat([past, tokens], 1)
        with self._running("step"):
            logits = self.adapter.step(self.module, StepInputs(ids, places, seen, **given))
            if not isinstance(logits, Tensor):
                raise CheckpointError(f"step of an adapter without caches must give logits, got {_described(logits)}")
            size = self.facts.writes.size
            self._require("step", "logits", logits, ("B", "P + T", size), (*ids.shape, size))
        digits = (each[:, None, :, None].to(state[high].dtype) for each in (ids // DIGIT, ids % DIGIT))
        return logits[:, past.shape[1] :], dict(zip((high, low), digits, strict=True))

    def _flat(self, function: str, pairs: Any, owner: Owner, rows: int, length: int) -> list[Tensor]:
        """Return pairs of keys and values as a flat list; raise `CheckpointError` for unexpected numbers or shapes."""
        tensors = self.facts.owned(owner)
        layers = len(tensors) // 2
        try:
            found = [each for key, value in pairs for each in (key, value)]
        except (TypeError, ValueError):
            found = []
        if len(found) != 2 * layers or not all(isinstance(each, Tensor) for each in found):
            raise CheckpointError(f"{function} must give a pair of tensors for each of {layers} layers")
        tokens = "S" if owner == "source" else "P + T"
        for each, tensor in zip(tensors, found, strict=True):
            heads, _, size = each.dims
            what = f"{each.role}s of layer {each.layer}"
            self._require(function, what, tensor, ("B", heads, tokens, size), each.shape(rows, length))
        return found

    def _require(
        self, function: str, what: str, value: object, dims: Sequence[int | str], shape: tuple[int, ...]
    ) -> None:
        """Raise `CheckpointError` for an unexpected shape or dtype; skipped in a trace, where lengths are unknown."""
        if torch.compiler.is_exporting():
            return
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{function} must give {what} as a tensor, got {_described(value)}")
        found = tuple(value.shape)
        if found != shape:
            given, expected = _shapes(found, shape, dims)
            raise CheckpointError(f"{function} gives {what} of {given}, the adapter says {expected}")
        if value.dtype != self.dtype:
            raise CheckpointError(f"{function} gives {what} in {value.dtype}, the weights are in {self.dtype}")

    @contextlib.contextmanager
    def _running(self, function: str) -> Iterator[None]:
        """Convert errors of the user's code to `CheckpointError` with the line; errors of a trace stay as they are."""
        try:
            with computing(self.dtype):
                yield
        except (TxportError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if torch.compiler.is_exporting() or is_out_of_memory(error):
                raise
            what = f"{function} of {self.class_name} fails in {self.dtype}: {type(error).__name__}: {brief(error)}"
            raise CheckpointError(f"{what}{line_of(error)}") from error

    @property
    def class_name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__


@contextlib.contextmanager
def _without_recurrence(module: nn.Module) -> Iterator[None]:
    """Raise `UnsupportedError` where a module calls `nn.GRU`, `nn.LSTM` or `nn.RNN` in this context."""

    def refuse(name: str, part: nn.Module) -> None:
        what = f"{name} is an nn.{type(part).__name__}: PyTorch's exporter writes a recurrent layer for one length only"
        raise UnsupportedError(f"{what}; docs/adapters.md says what can be exported")

    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.RNNBase)]
    handles = [part.register_forward_pre_hook(lambda part, _, name=name: refuse(name, part)) for name, part in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def computing(dtype: torch.dtype) -> Iterator[None]:
    """Run the user's code with the same kernels for every batch; in float64, replace float32 by float64."""
    default = torch.get_default_dtype()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if dtype == torch.float64:
            torch.set_default_dtype(dtype)
            with Widening():
                yield
        else:
            yield
    finally:
        torch.set_default_dtype(default)
        torch.backends.mha.set_fastpath_enabled(fast)


def line_of(error: BaseException) -> str:
    """Return the last line of the user's code in an error's traceback, in brackets; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*LIBRARIES, "<"))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _pairs(tensors: Iterable[Tensor]) -> tuple[tuple[Tensor, Tensor], ...]:
    flat = list(tensors)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _shapes(found: Sequence[int], shape: Sequence[int], dims: Sequence[int | str]) -> tuple[str, str]:
    """Return the found and the expected shape as text, with the letters of `dims` for lengths that are equal."""
    if len(found) != len(shape):
        return f"({', '.join(map(str, found))})", f"({', '.join(map(str, dims))})"
    pairs = zip(found, shape, dims, strict=True)
    named = [(dim, dim) if isinstance(dim, str) and one == other else (one, other) for one, other, dim in pairs]
    given, expected = (", ".join(map(str, each)) for each in zip(*named, strict=True))
    return f"({given})", f"({expected})"


def _described(value: object) -> str:
    if isinstance(value, Sequence):
        return f"{len(value)} values"
    return f"a {type(value).__name__}"
