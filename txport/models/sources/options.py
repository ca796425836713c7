"""What trainers store beside their tensors: options by name, and words for what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.errors import CheckpointError, ConfigError


@contextmanager
def reading(place: Path, what: str) -> Iterator[None]:
    """Whatever is wrong with `what` in this file becomes one `ConfigError` that begins with its path."""
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
