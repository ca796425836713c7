"""LoRAs of PEFT: the changes that they make to the tensors of a folder of transformers, which is merged with them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from txport.checkpoints.folder import Lora
from txport.checkpoints.sources.pickles import read_pickle
from txport.checkpoints.sources.source import Source, read_safetensors
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, UnsupportedError, quoted
from txport.models.config import read_config
from txport.models.names import PICKLES, TRANSFORMERS

START = "base_model.model."
OF_TEXT = re.compile(r"^(model\.)?language_model\.(model\.)?")  # the text model of one with images
FACTOR = re.compile(r"(.+)\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.default)?(?:\.(weight|bias))?")
WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(\.default)?(?=\.)")
UNUSED = ".original_module."  # in the name of a bias of which there is a copy to save
LINEAR, TABLE = ("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")
NORMS, BIAS = "lora_magnitude_vector", "lora_B.bias"
READ = ("peft_type", "lora_alpha", "use_rslora", "alpha_pattern", "fan_in_fan_out", "init_lora_weights")
UNREAD = (  # where the factors are and how they were trained: names and shapes of tensors say the former
    *("r", "rank_pattern", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "revision"),
    *(
        "modules_to_save",
        "bias",
        "lora_bias",
        "use_dora",
        "task_type",
        "auto_mapping",
        "inference_mode",
        "peft_version",
    ),
    *("base_model_name_or_path", "lora_dropout", "runtime_config", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
)
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")  # others change the base model's weights, too


def merged(source: Source, loras: Sequence[Lora]) -> Source:
    """Return a source whose tensors have the changes of LoRAs, in float32, as PEFT's `merge_and_unload` makes them.

    Raises `UnsupportedError` for a source that transformers did not save, and for an unknown kind of LoRA;
    `CheckpointError` for one that does not fit.
    """
    if not loras:
        return source
    if source.original != TRANSFORMERS:
        raise UnsupportedError(f"a LoRA is for a folder that {TRANSFORMERS} saved; {source.place} is none")
    if source.quantised:
        raise UnsupportedError(f"{source.place} is in 4 bits; merge the LoRA with the model that it was made from")
    return replace(source, weights=partial(_merged, source.weights, loras), loras=tuple(loras))


def _merged(weights: Any, loras: Sequence[Lora]) -> Weights:
    found: Weights = weights()
    for lora in loras:
        found = Changes(lora, found, is_alone=len(loras) == 1).merged
    return found


@dataclass
class Change:
    """The names of the tensors that change a linear layer or an embedding, by kind, and `alpha`, their scale's part."""

    alpha: float
    names: dict[str, str] = field(default_factory=dict)

    @property
    def factors(self) -> tuple[str, str]:
        """The kinds of the two factors."""
        return TABLE if {*TABLE} & {*self.names} else LINEAR


class Changes:
    """What a LoRA changes in the tensors `base`; `is_alone`: no other LoRA does."""

    def __init__(self, lora: Lora, base: Weights, *, is_alone: bool) -> None:
        config, self._file = lora.files
        self._lora, self._base = lora, base
        self._values = read_config(config)
        _require_known(self._values, lora)
        self._given = _tensors(self._file)
        self._replaced: dict[str, str] = {}  # name in `base` -> name of the whole tensor that replaces it
        self._changed: dict[str, Change] = {}  # name in `base` -> what is added to it
        changes: dict[str, Change] = {}
        for name in self._given:
            if UNUSED not in name:
                self._sort(name, changes)
        for module, change in changes.items():
            if missing := [kind for kind in change.factors if kind not in change.names]:
                raise CheckpointError(f"{self._file} has no {missing[0]} of {quoted(module)}")
            for last in ("weight", "bias") if BIAS in change.names else ("weight",):
                self._changed[_find(f"{module}.{last}", base, self._file)] = change
        if not self._given:
            raise CheckpointError(f"{self._file} holds no tensors")
        normed = any(NORMS in each.names for each in changes.values())
        if (self._replaced or normed) and lora.weight != 1:
            raise UnsupportedError(f"{lora.name} replaces tensors or their norms, so its weight must be 1")
        if normed and not is_alone:
            raise UnsupportedError(f"{lora.name} sets norms (DoRA), so it can't be merged with another LoRA")
        if any({NORMS, TABLE[1]} <= {*each.names} for each in changes.values()):
            raise UnsupportedError(f"{lora.name} sets the norms of an embedding (DoRA), which is not supported")

    def _sort(self, name: str, changes: dict[str, Change]) -> None:
        """Take a tensor into `changes` by its module, or into those that are replaced."""
        inner = name.removeprefix(START)
        found = FACTOR.fullmatch(inner)
        if not name.startswith(START) or (found is None and ("lora_" in name or "token_adapter" in name)):
            raise UnsupportedError(f"{self._file}: tensors such as {quoted(name)} are not known in a LoRA")
        if found is not None:
            module, kind, last = found.groups()
            change = changes.setdefault(module, Change(_alpha(self._values, module)))
            change.names[f"{kind}.bias" if last == "bias" else kind] = name
            return
        to = _find(WRAPPED.sub("", inner), self._base, self._file)
        if (shape := self._given.shapes[name]) != self._base.shapes[to]:
            raise CheckpointError(f"{self._file}: {quoted(name)} is {shape}, in the base model {self._base.shapes[to]}")
        self._replaced[to] = name

    @property
    def merged(self) -> Weights:
        """The tensors with the changes."""
        return Weights(self._base.shapes, self._read)

    def _read(self, name: str) -> Tensor:
        if name in self._replaced:
            return self._given[self._replaced[name]]
        tensor, change = self._base[name], self._changed.get(name)
        return tensor if change is None else self._change(name, tensor.float(), change)

    def _change(self, name: str, tensor: Tensor, change: Change) -> Tensor:
        """Return a weight (out, in) or (in, out), a table (ids, width) or a bias after its change."""
        first, second = (self._given[change.names[kind]].float() for kind in change.factors)
        rank = max(1, len(first))
        scale = self._lora.weight * change.alpha / (math.sqrt(rank) if self._values.get("use_rslora") else rank)
        if tensor.ndim == 1:
            return tensor + scale * self._given[change.names[BIAS]].float()
        if first.ndim != 2 or second.ndim != 2 or second.shape[1] != len(first):
            shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
            raise CheckpointError(f"{self._file}: the factors of {quoted(name)} have shapes {shapes}")
        delta = second @ first  # (out, in), or (width, ids)
        is_square = tensor.shape[0] == tensor.shape[1]
        across = change.factors == TABLE or (
            self._values.get("fan_in_fan_out") is True if is_square else tensor.shape != delta.shape
        )
        delta = scale * (delta.T if across else delta)
        if delta.shape != tensor.shape:
            raise CheckpointError(
                f"{self._file} changes {quoted(name)} by {tuple(delta.shape)}, not {tuple(tensor.shape)}"
            )
        total = tensor + delta
        if NORMS in change.names:
            norms = total.norm(dim=0 if across else 1, keepdim=True)
            total *= self._given[change.names[NORMS]].float().reshape(norms.shape) / norms
        return total


def _tensors(file: Path) -> Weights:
    return read_pickle(file, "") if file.suffix in PICKLES else read_safetensors(file)


def _require_known(values: Mapping[str, object], lora: Lora) -> None:
    """Raise `UnsupportedError` for what is no LoRA, and for one that is more than factors of weights."""
    if (kind := values.get("peft_type")) != "LORA":
        raise UnsupportedError(f"{lora.name} is an adapter of PEFT of the kind {quoted(kind)}, and no LoRA")
    if (how := values.get("init_lora_weights")) not in INITIAL:
        what = f"{lora.name} was started by {quoted(how)}, which changes the base model"
        raise UnsupportedError(f"{what}; save it with path_initial_model_for_weight_conversion")
    if strange := [name for name, value in values.items() if value and name not in (*READ, *UNREAD)]:
        raise UnsupportedError(f"{lora.name}: {strange[0]} {quoted(values[strange[0]])} of a LoRA is not supported")


def _alpha(values: Mapping[str, Any], module: str) -> float:
    """Return `lora_alpha` of a module."""
    patterns: Mapping[str, float] = values.get("alpha_pattern") or {}
    key = next((key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), None)
    return float(values.get("lora_alpha", 8) if key is None else patterns[key])


def _is_end(name: str, longer: str) -> bool:
    return f".{longer}".endswith(f".{name}")


def _find(name: str, base: Weights, file: Path) -> str:
    """Return the name in the base model's files of a tensor of its module; either may lack a prefix.

    transformers 4.52 renamed the text model of those with images, from `language_model.model` to
    `model.language_model`.
    """
    found = [name] if name in base else [each for each in base if _is_end(name, each) or _is_end(each, name)]
    found = found or [each for each in base if OF_TEXT.sub("", each) == OF_TEXT.sub("", name)]
    if len(found) != 1:
        raise CheckpointError(f"{file} changes {quoted(name)}, of which the base model has {len(found)}")
    return found[0]
