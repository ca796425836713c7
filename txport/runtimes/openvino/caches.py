"""Caches of a decoder that runs change in place, and their values as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from txport.runtimes.openvino.library import openvino
from txport.runtimes.openvino.requests import Tensor
from txport.system.arrays import Array
from txport.targets.ports import Graph, Port


class Decoder(Protocol):
    """A compiled decoder that keeps the caches of its rows."""

    def store(self, ports: Sequence[Port], rows: int) -> Store:
        """Return empty caches of some rows; `ports` are the caches' inputs."""
        ...


class Store(ABC):
    """The caches of a decoder's rows, which runs change in place: `length` tokens each, with padding.

    `turn` counts the selections of rows.
    """

    def __init__(self, ports: Sequence[Port], rows: int) -> None:
        self._ports = ports
        self.count, self.length, self.turn = rows, 0, 0

    @abstractmethod
    def fill(self, inputs: Mapping[str, Tensor], length: int) -> None:
        """Set the caches, which are empty, to those of the inputs, whose tokens, with padding, are `length`."""

    @abstractmethod
    def run(
        self, graph: Graph, inputs: Mapping[str, Tensor], lengths: Mapping[str, int], *, wanted: bool, last: bool
    ) -> dict[str, Tensor]:
        """Run new tokens (R, T), and return the outputs other than caches; `lengths` are those of the graph's dims.

        The logits are (R, L, V): L is T, 1 if those of the `last` tokens are enough, and 0 if none are `wanted`.
        """

    @abstractmethod
    def select(self, rows: Array) -> None:
        """Keep `rows` (R,), some of them several times."""

    @abstractmethod
    def values(self, name: str) -> Array:
        """Return a copy of a cache (R, G, P, H)."""

    def caches(self) -> dict[str, Cache]:
        """Return the caches by name, as the state after the last run or selection."""
        return {port.name: Cache(self, port, self.length, self.turn) for port in self._ports}


class Cache(NamedTuple):
    """A cache after `length` tokens and `turn` selections; later steps keep its values."""

    store: Store
    port: Port
    length: int
    turn: int

    @property
    def is_current(self) -> bool:
        """Whether the caches have neither grown nor moved since."""
        return (self.length, self.turn) == (self.store.length, self.store.turn)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims, for example (R, G, P, H)."""
        batch, past = dynamic(self.port)
        return self.port.shape({batch: self.store.count, past: self.length})

    @property
    def array(self) -> Array:
        """Its values, copied. Raise `ValueError` if its rows were selected since."""
        if self.turn != self.store.turn:
            raise ValueError(f"the rows of {self.port.name} were selected; use the state that `select` returned")
        axis = self.port.dims.index(dynamic(self.port)[1])
        array = self.store.values(self.port.name).astype(self.port.dtype, copy=False)
        return array.take(np.arange(self.length), axis)

    @property
    def tensor(self) -> object:
        """Its values, copied, as a tensor of OpenVINO."""
        return openvino.Tensor(self.array)


def dynamic(cache: Port) -> list[str]:
    """Return the dims of the rows and of their tokens."""
    return [dim for dim in cache.dims if isinstance(dim, str)]
