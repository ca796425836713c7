"""Values of a model exported by other tools: its JSON configs, over the defaults of the model type if it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from txport.checkpoints import family
from txport.checkpoints.pooling import ACTIVATION, OF_CROSS, activation_of
from txport.errors import BundleError, ConfigError, quoted
from txport.models.config import LARGEST, read_config
from txport.models.names import CONFIG, GENERATION


@dataclass(frozen=True)
class Values:
    """The config values of a folder. Raises `BundleError` for one that must be a number or a token and is not."""

    folder: Path
    special: Mapping[str, int] | None = None  # special tokens of the tokenizer: text -> id

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of `config.json`."""
        return _read(self.folder / CONFIG)

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The values of `generation_config.json`; empty if there is no such file."""
        return _read(self.folder / GENERATION) if (self.folder / GENERATION).is_file() else {}

    @property
    def type(self) -> str:
        """The `model_type`, the name of a model family."""
        return str(self.config.get(family.TYPE, "model of no named type"))

    @property
    def known(self) -> dict[str, object]:
        """The config in the project's own architecture; empty if none supports this type or variant."""
        return self.expressed[0]

    @cached_property
    def expressed(self) -> tuple[dict[str, Any], str]:
        """The config in the project's own architecture, and the reason if it is empty."""
        try:
            beside = family.read_beside(self.folder)
            activation = activation_of(self.folder)
            scored = {} if activation is None else {OF_CROSS: {ACTIVATION: activation}}
            return family.find(self.type).read({**self.config, **self._tokens, **scored, **beside}, self.special), ""
        except ConfigError as error:
            return {}, str(error)

    @property
    def _tokens(self) -> dict[str, object]:
        return {name: each for name, each in self.generation.items() if name in family.SPECIAL and each is not None}

    @cached_property
    def _all(self) -> dict[str, object]:
        """The values under every name that transformers uses for them, over the defaults of the type."""
        known = family.all_families().get(self.type)
        part = self.config.get(known.part) if known else None  # of a multimodal model
        values = {
            **(known.defaults[self.type] if known else {}),
            **(part if isinstance(part, dict) else {}),
            **self.config,
        }
        for alias, name in (known.aliases if known else {}).items():
            if name in values:
                values.setdefault(alias, values[name])
        return {**values, **self._tokens}

    def get(self, *names: str) -> object:
        """Return the value of the first of these names that has one; None if none has."""
        return next((each for name in names if (each := self._all.get(name)) is not None), None)

    def size(self, *names: str) -> int | None:
        """Return a positive whole number below `LARGEST`; None if no value has one of these names."""
        found = self.get(*names)
        if found is not None and (type(found) is not int or not 0 < found < LARGEST):
            raise self._wrong(f"{names[0]} must be a positive whole number, got {quoted(found)}")
        return found

    def tokens(self, name: str, size: int) -> tuple[int, ...]:
        """Return the ids of one token or several of a vocabulary of `size`; () if no value has this name."""
        found = self.get(name)
        ids = [] if found is None else found if isinstance(found, list) else [found]
        for each in ids:
            if type(each) is not int or not 0 <= each < size:
                raise self._wrong(f"{name} must lie in the vocabulary of {size}, got {quoted(each)}")
        return tuple(ids)

    def token(self, name: str, size: int) -> int | None:
        """Return the id of one token, the first of several; None if no value has this name."""
        return next(iter(self.tokens(name, size)), None)

    def _wrong(self, what: str) -> BundleError:
        return BundleError(f"{self.folder / CONFIG}: {what}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of the saved model."""
        found = self.config.get("architectures")
        return tuple(map(str, found)) if isinstance(found, list) else ()


def _read(path: Path) -> dict[str, object]:
    try:
        return read_config(path)
    except ConfigError as error:
        raise BundleError(str(error)) from error
