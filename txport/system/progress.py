"""Progress of long work: messages, which may tell the share of the work that is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

logger = logging.getLogger("txport")
Progress = Callable[[str], None]
Item = TypeVar("Item")


class Stage(str):
    """A message about what begins now, and the share of all work that is done before it, from 0 to 1."""

    share: float

    def __new__(cls, message: str, share: float) -> Stage:
        """Return the message with its share."""
        stage = super().__new__(cls, message)
        stage.share = share
        return stage


def logged(message: str) -> None:
    """Log a message at the level INFO, which Python does not show by default."""
    logger.info("%s", message)


def within(progress: Progress, start: float, end: float) -> Progress:
    """Return a progress for a part of the work, from the share `start` to `end`."""

    def report(message: str) -> None:
        share = message.share if isinstance(message, Stage) else 0.0
        progress(Stage(message, start + (end - start) * share))

    return report


def counted(progress: Progress, items: Sequence[Item], describe: Callable[[Item], str]) -> Iterator[Item]:
    """Yield the items, each after a message about it; all take about as long."""
    for number, item in enumerate(items):
        progress(Stage(describe(item), number / len(items)))
        yield item
