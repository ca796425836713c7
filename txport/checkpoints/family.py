"""Checkpoints written by transformers: a family converts each `model_type` of `config.json` to an architecture.

Each family is one file in `txport/checkpoints/families`, which defines `FAMILY`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport.checkpoints import families
from txport.checkpoints.keys import require_known
from txport.errors import CheckpointError, ConfigError, quoted
from txport.models.config import read_config
from txport.models.generation import version_of
from txport.models.names import GENERATION, PREPROCESSOR, PROCESSOR
from txport.models.rules import Rule

if TYPE_CHECKING:
    from txport.checkpoints.weights.values import Weights  # imports torch, and reading a config does not need it

TYPE = "model_type"
FILES = tuple(Path(name).stem for name in (GENERATION, PREPROCESSOR))  # files next to the config, which it contains
AUDIO = "feature_extractor"  # the object of processor_config.json with the values of preprocessor_config.json
OF_PROCESSOR = ("processor_class", "tokenizer", "auto_map")
SPECIAL = (
    "eos_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "cls_token_id",
    "sep_token_id",
    "mask_token_id",
    "pad_token_id",
)
_EXPERTS = "only the experts of Mixtral, Qwen, OLMoE, Granite and gpt-oss are known, whose routers are a softmax"
_WINDOWS = "its encoder attends to windows, and only those of decoders are known"
REFUSED = {  # well-known types that are not supported -> reason
    "xlm-roberta-xl": "its layers normalise before attention, and only XLM-R's, which normalise after it, are known",
    **dict.fromkeys(("nllb-moe", "switch_transformers", "deepseek_v2", "deepseek_v3", "dbrx", "phimoe"), _EXPERTS),
    **dict.fromkeys(("led", "longt5", "longformer"), _WINDOWS),
    "umt5": "each of its layers has its own biases of distances, and only those of T5, which share them, are known",
}
HEADLESS = re.compile(r"(?<!Head)(?<!Heads)(Encoder)?Model$")
BARE = r"(?<!Head)(?<!Heads)Model"  # matches the end of the name of a class without a head


class Published:
    """The values of a published `config.json`, with the defaults of its class for missing values.

    `special` are the special tokens of its `tokenizer.json`, if there is one: token text -> id. `weights` opens the
    tensors of its files, for keys whose meaning depends on them; None if there are none.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        defaults: Mapping[str, object],
        special: Mapping[str, int] | None = None,
        weights: Callable[[], Weights | None] = lambda: None,
    ) -> None:
        self._values = {**defaults, **values}
        self.special = special
        self.weights = weights
        self.read: set[str] = set()  # the names that were asked for

    @property
    def type(self) -> str:
        """The `model_type`."""
        return str(self._values[TYPE])

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names in `architectures`, of the models that the checkpoint was saved from."""
        found = self.get("architectures", [])
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def version(self) -> int:
        """The major version of transformers that wrote the file; 4 if it is not named."""
        return version_of(self._values)

    def all(self) -> dict[str, object]:
        """Return all values, defaults included."""
        return dict(self._values)

    def get(self, name: str, default: object = None) -> Any:
        """Return one value; `default` if it is null, or if it is missing and its class has no default."""
        self.read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def beside(self, name: str) -> Mapping[str, Any]:
        """Return a nested object: another file (`generation_config`) or a part (`text_config`); empty if missing."""
        self.read.add(name)
        found = self._values.get(name)
        return found if isinstance(found, Mapping) else {}

    def changed(self, **values: object) -> Published:
        """Return a copy with some values replaced, whose reads count as this one's."""
        made = Published({**self._values, **values}, {}, self.special, self.weights)
        made.read = self.read
        return made

    def head(self, heads: Mapping[str, str], usual: str) -> str:
        """Return the head of the class that a checkpoint was saved from, by the end of its name; else the usual one."""
        name = next(iter(self.classes), "")
        return next((head for end, head in heads.items() if re.search(f"{end}$", name)), usual)

    def word(self, name: str, meanings: Mapping[str, str]) -> str:
        """Translate a string value by `meanings`; raise `ConfigError` if it is not among them."""
        value = self.get(name)
        if not isinstance(value, str) or value not in meanings:
            raise ConfigError(f"{name} {quoted(value)} is not supported; supported: {', '.join(sorted(meanings))}")
        return meanings[value]

    def require(self, name: str, *allowed: object) -> None:
        """Raise `ConfigError` unless a value is one of `allowed`; the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise ConfigError(f"{name} {quoted(value)} is not supported; it must be {expected}")

    def alike(self, *names: str) -> object:
        """Return the value that several keys share; raise `ConfigError` if they differ."""
        return require_alike({name: self.get(name) for name in names}, *names)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a value that is one id or a list; empty for null."""
        value = self.get(name, [])
        return tuple(value) if isinstance(value, list) else (value,)

    def token(self, name: str, default: object = None) -> Any:
        """Return the token id of a value that is one id or a list of one; raise `ConfigError` for more."""
        found = self.tokens(name)
        if len(found) > 1:
            raise ConfigError(f"{name} {quoted(list(found))} is not supported; it must be one token")
        return found[0] if found else default

    def start(self, default: object) -> object:
        """Return the token that targets begin with: the start token or, without one, the first token of texts.

        If there is a `generation_config.json`, they are those that it names, as for transformers' `generate`.
        """
        generated = self.beside(Path(GENERATION).stem)
        for values in (generated, self):
            for name in ("decoder_start_token_id", "bos_token_id"):
                if (found := values.get(name)) is not None:
                    return found
        return default


def require_alike(options: Mapping[str, object], *names: str, default: object = None) -> object:
    """Return the value that several options share; raise `ConfigError` if they differ."""
    found = [options.get(name, default) for name in names]
    if any(each != found[0] for each in found):
        told = " and ".join(f"{name} {quoted(each)}" for name, each in zip(names, found, strict=True))
        raise ConfigError(f"{told} differ, which is not supported")
    return found[0]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of checkpoints: the conversion of their configs and weights to one architecture.

    `defaults` are the defaults of the classes of transformers, per `model_type`. `aliases` are other names of keys that
    transformers accepts too. `config` returns the values of the architecture's config. `weights` are rules that run
    before those of the architecture; `own_weights` returns the rules of a single `model_type`, which run before them,
    given the architecture's config. `classes` is a regular expression that must match the end of the names of the
    classes that a checkpoint was saved from. `unused` are keys that `config` does not read and why they change no
    output, `off` the only values of others that are supported, next to the tables of `keys`. `part` is the key of the
    object that has the keys of a multimodal model's text model.
    """

    defaults: Mapping[str, Mapping[str, object]]
    architecture: str
    classes: str
    config: Callable[[Published], dict[str, object]]
    weights: tuple[Rule, ...] = ()
    own_weights: Mapping[str, Callable[[object], tuple[Rule, ...]]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    off: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    part: str = ""

    def read(
        self,
        values: Mapping[str, Any],
        special: Mapping[str, int] | None,
        weights: Callable[[], Weights | None] = lambda: None,
    ) -> dict[str, Any]:
        """Return the values of the architecture's config; raise `ConfigError` for values that it does not support."""
        values, kind = dict(values), values[TYPE]
        for alias, name in self.aliases.items():
            if alias in values and values.setdefault(name, values[alias]) != values[alias]:
                raise ConfigError(f"{alias} {quoted(values[alias])} and {name} {quoted(values[name])} must be the same")
        published = Published(values, self.defaults[kind], special, weights)
        if strange := [name for name in published.classes if not re.search(f"({self.classes})$", name)]:
            hint = ""
            if HEADLESS.search(strange[0]):
                hint = (
                    ": it has no head that writes text; save the whole model, as the class ...ForConditionalGeneration"
                )
            raise ConfigError(f"the class {quoted(strange[0])} of a {kind} is not supported{hint}")
        try:
            found = self.config(published)
            _require_special(values, published, found)
            self._require_known(values, published)
            return found
        except (ConfigError, CheckpointError):
            raise
        except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"it is not the config of a {kind}: {error!r}") from error

    def _require_known(self, values: Mapping[str, object], published: Published) -> None:
        """Raise `ConfigError` for a key that is not read and may change outputs."""
        read = {*published.read, *self.aliases, *FILES}
        part = values.get(self.part, {})
        for each in (values, part if isinstance(part, Mapping) else {}):
            require_known(each, read, self.unused, self.off, published.type)


def read_beside(folder: Path) -> dict[str, dict[str, object]]:
    """Return the values of the files next to a config, by their names without `.json`; {} for a missing one.

    The audio settings in `processor_config.json` take precedence over `preprocessor_config.json`, as in transformers 5.
    Raises `ConfigError` for a file that is damaged, and for other settings of a processor that has audio settings.
    """
    paths = [folder / name for name in (GENERATION, PREPROCESSOR)]
    found = {path.stem: read_config(path) if path.is_file() else {} for path in paths}
    processor = read_config(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    own = processor.get(AUDIO)
    if own is not None:
        require_known(processor, (*OF_PROCESSOR, *([AUDIO] if isinstance(own, dict) else [])), {}, {}, "processor")
        found[Path(PREPROCESSOR).stem] = own
    return found


def _require_special(values: Mapping[str, object], published: Published, found: Mapping[str, object]) -> None:
    """Raise `ConfigError` for a special token outside the vocabulary, by its name in the checkpoint."""
    size = next((size for name, size in found.items() if "vocab" in name), None)
    ids = [each for name, id_ in found.items() if name.endswith(("_id", "_ids")) for each in _several(id_)]
    strange = [id_ for id_ in ids if type(id_) is int and type(size) is int and not 0 <= id_ < size]
    for name in SPECIAL if strange else ():
        inner = published.beside("text_config").get(name)  # of a multimodal model
        for id_ in (*published.tokens(name), *_several(inner)):
            if id_ in strange:
                told = name in values or inner is not None
                kind = "" if told else f", which a {published.type} has where none is named; name the model's own"
                raise ConfigError(f"{name} must lie in the vocabulary of {size} (vocab_size), got {quoted(id_)}{kind}")


def _several(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


@cache
def all_families() -> dict[str, Family]:
    """Return the family of each `model_type`."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(families.__path__):
        family: Family = importlib.import_module(f"{families.__name__}.{module.name}").FAMILY
        found |= dict.fromkeys(family.defaults, family)
    return dict(sorted(found.items()))


def find(model_type: object) -> Family:
    """Return the family of a `model_type`; raise `ConfigError` if there is none."""
    known = all_families()
    if isinstance(model_type, str) and model_type in REFUSED:
        raise ConfigError(f"the {TYPE} {quoted(model_type)} is not supported: {REFUSED[model_type]}")
    if not isinstance(model_type, str) or model_type not in known:
        more = "if it computes the same as one of these, docs/own-checkpoint.md shows how to say and to check it"
        raise ConfigError(f"unknown {TYPE} {quoted(model_type)}; there are {', '.join(known)}; {more}")
    return known[model_type]


ACTIVATIONS = {  # by their names in transformers
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
