"""A draft of `txport.toml` for unknown weights; each uncertain value in it is a question."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from txport.checkpoints.folder import weight_files
from txport.checkpoints.importing.match import Match, Sizes, match, solve
from txport.checkpoints.importing.probe import Variant, closest, decided, dims_of, layer_fields, open_fields, task_of
from txport.checkpoints.importing.roles import pattern_of, role_of, templates
from txport.checkpoints.importing.rules import Rules, rules
from txport.checkpoints.sources.pickles import read_pickle
from txport.checkpoints.sources.rules import toml, written
from txport.checkpoints.sources.source import read_safetensors, read_weights
from txport.checkpoints.sources.toml import QUESTION
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, OutputError
from txport.models import architecture
from txport.models.names import CONFIG, PICKLES, RULES, WEIGHTS
from txport.models.rules import Drop, Rename, Shift
from txport.system.documents import DocumentError, read_json
from txport.system.files import staged_file
from txport.system.paths import resolve
from txport.system.terminal import one_line

DIFFERING = 20  # maximum number of differing names in an error
NEAR_ZERO = 0.5  # a lower mean weight of norms is nearer to 0 than to 1
ASSUMED = "  # assumed, as usual: no tensor tells it"
UNSURE = "  # if the tensors that the rules do not name are no weights"
HYPERPARAMETERS = (CONFIG, "hparams.json", "params.json", "hyperparameters.json")
SYNONYMS = {  # field of our configs -> names in configs of other programs
    "heads": "num_heads n_head n_heads nhead num_attention_heads attention_heads encoder_attention_heads",
    "key_heads": "num_key_value_heads n_kv_heads num_kv_heads",
    "head_size": "head_dim d_kv kv_channels",
    "activation": "activation_function hidden_act act activation_fn",
    "norm_epsilon": "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps eps epsilon",
    "max_length": "max_position_embeddings n_positions n_ctx max_seq_len max_len block_size",
    "pad_id": "pad_token_id pad",
    "bos_id": "bos_token_id bos",
    "eos_id": "eos_token_id eos",
    "eos_ids": "eos_token_id eos",
    "rotary_base": "rope_theta",
}


@dataclass(frozen=True)
class Draft:
    """The nearest architecture, and the tensors of a file matched with its tensors."""

    variant: Variant
    match: Match
    copies: Mapping[str, str]  # tensor outside of layers -> an earlier one with the same values
    others: tuple[str, ...] = ()  # equally near architectures


def nearest(weights: Weights, name: str | None = None) -> Draft:
    """Match a file with the architecture that has the most similar tensors, or with the one of this name.

    Raises `ConfigError` for an unknown name.
    """
    copies = dict(_copies(weights))
    given = templates({each: shape for each, shape in weights.shapes.items() if each not in copies})
    sides = {each.role.side for each in given if each.numbers} - {""}
    has_cross = any(each.role.part == "cross" for each in given)
    tasks = ("seq2seq",) if has_cross or len(sides) > 1 else ("causal", "encode")
    names = [each for each in architecture.names() if task_of(each) in tasks]
    if name is not None:
        architecture.find(name)
        names = [name]

    def paired(variant: Variant) -> Match:
        return match(given, templates(dict(variant.shapes)))

    variants = [closest(each, lambda variant: paired(variant).score) for each in names]
    best = max(paired(variant).score for variant in variants)
    first, *others = [variant for variant in variants if paired(variant).score == best]
    return Draft(first, paired(first), copies, tuple(each.architecture for each in others))


def _copies(weights: Weights) -> Iterator[tuple[str, str]]:
    """Yield matrices outside of layers with the same values as an earlier one, and the name of that one."""
    seen: dict[tuple[int, ...], list[str]] = {}
    for name, shape in weights.shapes.items():
        if len(shape) == 2 and not re.search(r"\d", name):
            same = next((each for each in seen.get(shape, []) if weights.are_equal(each, name)), None)
            if same is not None:
                yield name, same
            else:
                seen.setdefault(shape, []).append(name)


def open_weights(source: Path, at: str = "") -> Weights:
    """Open the tensors of a folder or of one file; `at` is their location in a pickle.

    Raises `CheckpointError` if there is no such folder or file.
    """
    if source.is_file():
        return read_pickle(source, at) if source.suffix in PICKLES else read_safetensors(source)
    if not source.is_dir():
        raise CheckpointError(f"there is no {source}; give a folder with weights, or a file of weights")
    return read_weights(source, at)


def write_draft(source: Path, file: Path, name: str | None = None, at: str = "") -> list[str]:
    """Write a draft for the weights of a folder or a file; return lines to print.

    Raises `OutputError` if `file` exists or is in another folder than the weights, and `ConfigError` if several
    architectures are equally near.
    """
    weights = open_weights(source, at)
    folder = source.parent if source.is_file() else source
    if resolve(file).parent != resolve(folder):
        raise OutputError(f"{file} must lie beside the weights, since it names them: give {folder / RULES}")
    if file.exists():
        raise OutputError(f"{file} exists; a draft replaces no file")
    draft = nearest(weights, name)
    if draft.others:
        names = " or ".join((draft.variant.architecture, *draft.others))
        raise ConfigError(f"{source} may be of several architectures, {names}; say which with architecture=NAME")
    lines = list(_lines(weights, source, at, draft))
    with staged_file(file) as stream:
        stream.write("\n".join(lines) + "\n")
    questions = sum(QUESTION in line and not line.startswith("#") for line in lines)
    assumed = sum(line.endswith(ASSUMED) for line in lines)
    counts = f"{lines.count('[[rule]]')} rules, {questions} questions, {assumed} values assumed"
    return [
        f"{file}  {draft.variant.architecture}, {counts}",
        f"answer the questions in it, then: txport import {folder}" if questions else f"then: txport import {folder}",
    ]


def _lines(weights: Weights, source: Path, at: str, draft: Draft) -> Iterator[str]:
    """Yield the lines of the draft."""
    dims, same = dims_of(draft.variant)
    sizes = solve(draft.match.pairs, dims)
    yield f"# A draft, by names and shapes of {len(weights)} tensors. Replace each value that begins with {QUESTION}"
    yield "# by the answer; until then the file is refused. How sure a rule is, and why, stands behind it. Square"
    yield "# matrices are taken to lie as the others do, (out, in) or (in, out)."
    yield f'architecture = "{draft.variant.architecture}"'
    if at:
        yield f"at = {json.dumps(at)}"
    names = [source.name] if source.is_file() else [each.name for each in weight_files(source)]
    if names != [WEIGHTS]:
        yield f"weights = {toml(tuple(names) if len(names) > 1 else names[0])}"
    yield ""
    yield "[config]"
    yield from _config(source if source.is_dir() else source.parent, draft, sizes, same)
    for rule, why in (*rules(draft.match, sizes), *_copied(draft), *_shifts(draft, weights)):
        yield from ("", "[[rule]]", f"{written(rule)}  # {why}" if why else written(rule))


def _config(folder: Path, draft: Draft, sizes: Sizes, same: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the config: values from shapes and names, from a config next to the weights, and questions.

    `same` are fields that must equal another one.
    """
    variant = draft.variant
    kind = architecture.find(variant.architecture).config
    beside = _beside(folder)
    for field, value in beside.items():
        if type(value) is int and any(field in fields for fields in sizes.known):
            sizes.known.setdefault((field,), value)
    chosen = decided(variant)
    known = {**chosen, **_layers(draft), **sizes.fields()}
    known |= {field: known[first] for field, first in same.items() if first in known}
    choices = kind.choices()
    beside = {
        field: value
        for field, value in beside.items()
        if field not in known and value in choices.get(field, () if isinstance(value, str) else (value,))
    }
    left = dict(open_fields(variant, {**known, **beside}, sizes.products()))
    unsure = UNSURE if draft.match.given else ""
    for each in dataclasses.fields(kind):
        name = each.name
        if name in known:
            yield f"{name} = {json.dumps(known[name])}{unsure if name in chosen else ''}"
        elif name in beside:
            yield f"{name} = {json.dumps(beside[name])}  # as the config beside the weights says"
        elif name in left and left[name].usual is not None:
            yield f"{name} = {json.dumps(left[name].usual)}{ASSUMED}"
        elif name in left:
            yield f"{name} = {json.dumps(f'{QUESTION}: {left[name].question}')}"


def _layers(draft: Draft) -> dict[str, int]:
    """Return the numbers of layers of the file, by the fields of the config."""
    found = {}
    for side, field in layer_fields(draft.variant.architecture).items():
        pairs = [each for each in draft.match.pairs if each.own[0].name.startswith(f"{side}.")]
        if pairs:
            found[field] = len(pairs[0].given.numbers)
    return found


def _beside(folder: Path) -> dict[str, object]:
    """Return the values in a config of another program next to the weights, by the names of our fields."""
    found: dict[str, object] = {}
    for name in HYPERPARAMETERS:
        try:
            values = read_json(folder / name) if (folder / name).is_file() else {}
        except DocumentError:  # an unreadable config is ignored
            continue
        for field, names in SYNONYMS.items():
            for key in (field, *names.split()):
                if isinstance(values.get(key), int | float | str | bool):
                    value = values[key]
                    found.setdefault(field, [value] if field == "eos_ids" else value)
        found |= {
            key: each for key, each in values.items() if key not in found and isinstance(each, bool | int | float | str)
        }
    return found


def _copied(draft: Draft) -> Rules:
    """Yield the rules for tensors that are copies of others."""
    by_given = {each.given.name: each.own[0].name for each in draft.match.pairs}
    for copy, of in draft.copies.items():
        aliases = [alias for alias, first in draft.variant.aliases if first == by_given.get(of)]
        alias = next((each for each in aliases if role_of(each).part == role_of(copy).part), None)
        why = f"it is the same as {one_line(of)}"
        if alias is None:
            yield Drop(pattern_of(copy)), why
        elif copy != alias:
            yield Rename(pattern_of(copy), alias), why


def _shifts(draft: Draft, weights: Weights) -> Rules:
    """Yield a rule with a question if the weights of norms are nearer to 0 than to 1 on average."""
    pairs = [each for each in draft.match.pairs if each.given.role.is_norm and each.own[0].role.kind == "weight"]
    values = [float(weights[name].float().mean()) for each in pairs for name in each.given.names]
    if values and sum(values) / len(values) < NEAR_ZERO:
        question = f"{QUESTION}: norm\\.weight$ if norms multiply by 1 + weight, else remove this rule"
        yield Shift(question, 1.0), "they are near 0"
