"""Safe reading of trainers' YAML: anchors, tags and duplicate keys are refused."""

from __future__ import annotations

from typing import Any

import yaml

from txport.errors import brief, quoted


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML's safe loader, which also refuses aliases and duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """See `yaml.composer.Composer`."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias, which no trainer writes")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """See `yaml.constructor.SafeConstructor`."""
        found = super().construct_mapping(node, deep)
        if isinstance(node, yaml.MappingNode) and len(found) < len(node.value):
            raise ValueError("it names a key twice")
        return found


def read_yaml(text: str) -> dict[str, Any]:
    """Return a mapping from names to values; raise `ValueError`, with a one-line message, for anything else."""
    try:
        found = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {brief(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"it must map names to values, got {quoted(found)}")
    return found


def read_words(text: str) -> dict[str, str]:
    """Return a mapping from words to words; all scalars are read as text.

    Raises `ValueError`, with a one-line message, for anything else.
    """
    events: list[str] = []
    maps = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            maps += isinstance(event, yaml.MappingStartEvent)
            if isinstance(event, yaml.ScalarEvent):
                events.append(event.value)
            elif isinstance(event, yaml.AliasEvent | yaml.SequenceStartEvent):
                raise ValueError("it must map words to numbers")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {brief(error)}") from error
    found = dict(zip(events[::2], events[1::2], strict=False))
    if maps > 1 or 2 * len(found) != len(events):
        raise ValueError("it must name each word once, with a number")
    return found
