"""txport's own checkpoints: `config.json` names an `architecture`, and tensors have the model's names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from txport.checkpoints.family import TYPE
from txport.checkpoints.sources.source import Source, generation, no_defaults, place_of, read_weights
from txport.errors import ConfigError
from txport.models import architecture
from txport.models.config import read_config
from txport.models.names import CONFIG, GENERATION, NO_ORIGINAL

ARCHITECTURE = "architecture"
OLDEST = "transformer"  # the architecture of configs that name none
OLD_FAMILY = "encoder-decoder"  # in configs from before there were architectures


def recognises(folder: Path) -> bool:
    """Return whether the config names an `architecture` or has no `model_type`."""
    values = read_config(folder / CONFIG)
    return ARCHITECTURE in values or TYPE not in values


def read(folder: Path) -> Source:
    """See `Format`; the architecture's rules also convert some other names of tensors."""
    path = folder / CONFIG
    values = dict(read_config(path))
    try:
        if ARCHITECTURE not in values and values.get("family") == OLD_FAMILY:
            del values["family"]
        found = architecture.find(values.pop(ARCHITECTURE, OLDEST))
        config = found.config.from_dict(values)
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from error
    return Source(
        config=config,
        rules=found.weights,
        weights=partial(read_weights, folder),
        place=place_of(folder),
        generation=partial(generation, folder) if (folder / GENERATION).is_file() else no_defaults,
        original=NO_ORIGINAL,
    )
