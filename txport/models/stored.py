"""The tensors of a checkpoint's files, none of which is read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from txport.models.values import Shape


class Weights(Mapping[str, Tensor]):
    """The tensors of a checkpoint's files: their shapes are known, each is read when it is asked for."""

    def __init__(self, shapes: Mapping[str, Shape], read: Callable[[str], Tensor]) -> None:
        self.shapes, self._read = shapes, read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def joined(self, other: Weights) -> Weights:
        """These and others, of which none has a name of these."""
        return Weights({**self.shapes, **other.shapes}, lambda name: (self if name in self else other)[name])
