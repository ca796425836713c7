"""Options and vocabularies that trainers store next to tensors, and their error messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.errors import CheckpointError, ConfigError, brief
from txport.system.documents import DocumentError, read_text

NEVER = -64.0  # a logit below that of any generated token; not lower, because tolerances grow with the largest value
UNBOUNDED = 512  # maximum length in tokens of a model whose positions have no maximum


@contextmanager
def reading(place: Path, what: str) -> Iterator[None]:
    """Convert any error about `what` in this file to a `ConfigError` that begins with its path.

    A `CheckpointError` is raised unchanged.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{place}: it is nested too deep to be {what}") from error
    except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{place}: it is not {what}: {error!r}") from error


def read_strings(path: Path) -> list[str]:
    """Read a list of strings in JSON; raise `ConfigError` for anything else."""
    try:
        found = json.loads(read_text(path))
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {brief(error)}") from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"{path} must hold a list of strings")
    return found
