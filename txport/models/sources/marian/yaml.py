"""YAML that trainers write: no anchors, whose repetition grows without bound, no tags, no key twice."""

from __future__ import annotations

from typing import Any

import yaml

from txport.errors import brief, quoted


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # which has no types
    """As PyYAML's safe loader, and an alias or a key that is there twice is refused."""

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
    """A mapping from names to values; `ValueError` for anything else, in one line."""
    try:
        found = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {brief(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"it must map names to values, got {quoted(found)}")
    return found


def read_words(text: str) -> dict[str, str]:
    """A mapping from words to words, whatever else they look like; `ValueError` for anything else, in one line."""
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
