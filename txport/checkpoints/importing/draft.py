"""A draft of `txport.toml` for unknown weights; each uncertain value in it is a question."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from txport.checkpoints.folder import weight_files
from txport.checkpoints.importing.likeness import Template, templates
from txport.checkpoints.importing.match import Match, Pair, Sizes, match, solve, turned
from txport.checkpoints.importing.probe import Variant, closest, decided, dims_of, layer_fields, open_fields, task_of
from txport.checkpoints.importing.questions import own_name, pattern_of, questions, rule, with_groups
from txport.checkpoints.sources.pickles import read_pickle
from txport.checkpoints.sources.rules import toml, written
from txport.checkpoints.sources.source import read_safetensors, read_weights
from txport.checkpoints.sources.toml import QUESTION
from txport.checkpoints.weights.values import Weights
from txport.errors import CheckpointError, ConfigError, OutputError
from txport.models import architecture
from txport.models.names import CONFIG, PICKLES, RULES, WEIGHTS
from txport.models.rules import Constant, Rename, Rule, Split, Transpose, Unstack
from txport.system.documents import DocumentError, read_json
from txport.system.files import staged_file
from txport.system.paths import resolve
from txport.system.terminal import one_line

DIFFERING = 20  # maximum number of differing names in an error
BIAS = "bias"
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
    names = [name] if name is not None else list(architecture.names())
    for each in names:
        architecture.find(each)
    sides = {each.role.side for each in given if each.numbers} - {""}
    has_cross = any(each.role.part == "cross" for each in given)
    tasks = ("seq2seq",) if has_cross or len(sides) > 1 else ("causal", "encode")
    found: list[tuple[float, Draft]] = []
    for each in names:
        if name is None and task_of(each) not in tasks:
            continue
        variant = closest(each, lambda one: match(given, templates(dict(one.shapes))).score)
        paired = match(given, templates(dict(variant.shapes)))
        found.append((paired.score, Draft(variant, paired, copies)))
    best = max(score for score, _ in found)
    first, *others = [each for score, each in found if score == best]
    return dataclasses.replace(first, others=tuple(each.variant.architecture for each in others))


def _copies(weights: Weights) -> Iterator[tuple[str, str]]:
    """Yield matrices outside of layers with the same values as an earlier one, and the name of that one."""
    seen: dict[tuple[int, ...], list[str]] = {}
    for name, shape in weights.shapes.items():
        if len(shape) == 2 and not re.search(r"\d", name):
            same = next((each for each in seen.get(shape, []) if torch.equal(weights[each], weights[name])), None)
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
    lines = list(_lines(source, file, weights, draft))
    if at:
        lines.insert(lines.index(f'architecture = "{draft.variant.architecture}"') + 1, f"at = {json.dumps(at)}")
    with staged_file(file) as stream:
        stream.write("\n".join(lines) + "\n")
    rules = lines.count("[[rule]]")
    questions = sum(QUESTION in line and not line.startswith("#") for line in lines)
    assumed = sum(line.endswith(ASSUMED) for line in lines)
    return [
        f"{file}  {draft.variant.architecture}, {rules} rules, {questions} questions, {assumed} values assumed",
        f"answer the questions in it, then: txport import {folder}" if questions else f"then: txport import {folder}",
    ]


def _lines(source: Path, file: Path, weights: Weights, draft: Draft) -> Iterator[str]:
    """Yield the lines of the draft."""
    sizes = _sizes(draft)
    yield f"# A draft, by names and shapes of {len(weights)} tensors. Replace each value that begins with {QUESTION}"
    yield "# by the answer; until then the file is refused. How sure a rule is, and why, stands behind it. Square"
    yield "# matrices are taken to lie as the others do, (out, in) or (in, out)."
    yield f'architecture = "{draft.variant.architecture}"'
    files = [source] if source.is_file() else weight_files(source)
    names = [each.name for each in files]
    if names != [WEIGHTS]:
        yield f"weights = {toml(tuple(names) if len(names) > 1 else names[0])}"
    yield ""
    yield "[config]"
    yield from _config(source if source.is_dir() else source.parent, draft, sizes)
    yield from _rules(draft, sizes)
    yield from _shifts(draft, weights)


def _sizes(draft: Draft) -> Sizes:
    return solve(draft.match.pairs, dims_of(draft.variant)[0])


def _config(folder: Path, draft: Draft, sizes: Sizes) -> Iterator[str]:
    """Yield the lines of the config: values from shapes and names, from a config next to the weights, and questions."""
    variant = draft.variant
    kind = architecture.find(variant.architecture).config
    from_config = _from_config(folder)
    layers = {
        field: len(next(each.given.numbers for each in draft.match.pairs if each.own[0].name.startswith(f"{side}.")))
        for side, field in layer_fields(variant.architecture).items()
        if any(each.own[0].name.startswith(f"{side}.") for each in draft.match.pairs)
    }
    _, same = dims_of(variant)
    for field, value in from_config.items():
        if type(value) is int and any(field in fields for fields in sizes.known):
            sizes.known.setdefault((field,), value)
    found = sizes.fields()
    found |= {field: found[first] for field, first in same.items() if first in found}
    known = {**decided(variant), **layers, **found}
    choices = kind.choices()
    from_config = {
        field: value
        for field, value in from_config.items()
        if field not in known and value in choices.get(field, () if isinstance(value, str) else (value,))
    }
    derived = _derived(draft, sizes, {**known, **from_config})
    told = {**known, **from_config, **dict.fromkeys(derived)}
    left = {each.field: each for each in open_fields(variant, told, sizes.known)}
    unsure = UNSURE if draft.match.given else ""
    chosen = decided(variant)
    for each in dataclasses.fields(kind):
        if each.name in known:
            yield f"{each.name} = {json.dumps(known[each.name])}{unsure if each.name in chosen else ''}"
        elif each.name in from_config:
            yield f"{each.name} = {json.dumps(from_config[each.name])}  # as the config beside the weights says"
        elif each.name in left and left[each.name].usual is not None:
            yield f"{each.name} = {json.dumps(left[each.name].usual)}{ASSUMED}"
        elif each.name in left:
            yield f"{each.name} = {json.dumps(f'{QUESTION}: {left[each.name].question}')}"


def _derived(draft: Draft, sizes: Sizes, known: Mapping[str, object]) -> set[str]:
    """Return the fields that keep their default 0, which stands for a value derived from other fields.

    The shapes agree with that value.
    """
    kind = architecture.find(draft.variant.architecture).config
    zero = {each.name for each in dataclasses.fields(kind) if each.default == 0 and type(each.default) is int}
    products = {size for fields, size in sizes.known.items() if len(fields) > 1}
    width = sizes.known.get(("d_model",))
    in_products = {field for fields in sizes.known if len(fields) > 1 for field in fields}
    return {field for field in zero & in_products if field not in known and products == {width}}


def _from_config(folder: Path) -> dict[str, Any]:
    """Return the values in a config of another program next to the weights, by the names of our fields."""
    found: dict[str, Any] = {}
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


# ------------------------------------------------------------------------------------------------------------- rules


def _rules(draft: Draft, sizes: Sizes) -> Iterator[str]:
    """Yield the lines of the rules, each with its reason, and questions for unmatched tensors."""
    lie = {pair.given.name: is_turned for pair, is_turned in turned(draft.match.pairs, sizes)}
    for pair in _ordered(draft.match.pairs):
        for each in _of_pair(pair, lie.get(pair.given.name)):
            is_asked = isinstance(each, Split) and pair.needs_groups
            text = with_groups(written(each), pair.own[0].role.what) if is_asked else written(each)
            yield from rule(text, pair.why)
    yield from _copied(draft)
    yield from _transposes(draft.match.pairs, lie)
    absent = _absent(draft.match)
    for own in absent:
        pattern = pattern_of(own.name).replace(r"(\d+)", r"\d+")
        yield from rule(written(Constant(pattern)), "the file has none, which is the same as 0")
    left = tuple(each for each in draft.match.own if each not in absent)
    yield from questions(dataclasses.replace(draft.match, own=left), sizes)


def _absent(match: Match) -> list[Template]:
    """Return the biases of the model, beside weights that are paired, that no unpaired tensor of the file may be."""
    weights = {own.name for pair in match.pairs for own in pair.own}

    def may_be(one: Template, own: Template) -> bool:
        is_alike = one.role.kind == BIAS and bool(one.numbers) == bool(own.numbers)
        return is_alike and one.role.side in ("", own.role.side)

    return [
        each
        for each in match.own
        if each.role.kind == BIAS
        and f"{each.name.removesuffix(BIAS)}weight" in weights
        and not any(may_be(one, each) for one in match.given)
    ]


def _ordered(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in an order in which no rule produces a name that a later rule changes again."""
    left = list(pairs)
    found = []
    while left:
        names = {each.given.name for each in left}
        free = [each for each in left if not {one.name for one in each.own} & (names - {each.given.name})]
        found += free or left
        left = [each for each in left if each not in found]
    return found


def _of_pair(pair: Pair, is_turned: bool | None) -> Iterator[Rule]:
    """Yield the rules that rename, split or unstack the tensors of a pair."""
    given = pair.given
    own = pair.own
    if given.is_stacked:
        if len(own) > 1:
            fused = f"{own[0].name.partition('{}')[0]}{{}}.fused {given.name}"
            yield Unstack(pattern_of(given.name), fused)
            given = dataclasses.replace(given, name=fused, is_stacked=False)
        else:
            yield Unstack(pattern_of(given.name), own[0].name)
            return
    numbers = [None] if not given.numbers or given.numbers[0] == 0 else given.numbers
    for number in numbers:
        pattern = pattern_of(given.name if number is None else given.name.replace("{}", str(number)))
        to = tuple(own_name(one.name) if number is None else one.name.replace("{}", str(number - 1)) for one in own)
        if len(own) > 1:
            yield Split(pattern, to, -1 if is_turned else 0)
        elif given.name != own[0].name:
            yield Rename(pattern, to[0])


def _copied(draft: Draft) -> Iterator[str]:
    """Yield the lines of rules for tensors that are copies of others."""
    by_given = {each.given.name: each.own[0] for each in draft.match.pairs}
    for copy, of in draft.copies.items():
        own = by_given.get(of)
        aliases = [alias for alias, first in draft.variant.aliases if own is not None and first == own.name]
        wanted = templates({copy: ()})[0].role.part
        alias = next((each for each in aliases if templates({each: ()})[0].role.part == wanted), None)
        if alias is not None and copy != alias:
            yield from rule(written(Rename(pattern_of(copy), alias)), f"it is the same as {one_line(of)}")
        elif alias is None:
            yield from rule(f"drop = {toml(pattern_of(copy))}", f"it is the same as {one_line(of)}")


def _transposes(pairs: Sequence[Pair], lie: Mapping[str, bool | None]) -> Iterator[str]:
    """Yield the lines of rules for matrices stored as (in, out)."""
    matrices = [each for each in pairs if each.given.name in lie]
    if matrices and all(lie[each.given.name] for each in matrices):
        sides = "|".join(dict.fromkeys(one.name.partition(".")[0] for each in matrices for one in each.own))
        yield from rule(
            written(Transpose(rf"^({sides})\.\d+\.")), "likely, as the shapes of all that are not square say"
        )
        return
    for each in matrices:
        for one in each.own:
            if lie[each.given.name]:
                yield from rule(
                    written(Transpose(pattern_of(one.name).replace(r"(\d+)", r"\d+"))), "sure, by its shape"
                )
            elif lie[each.given.name] is None:
                pattern = pattern_of(one.name).replace(r"(\d+)", r"\d+")
                question = f"{QUESTION}: {pattern} if it lies as (in, out), else remove this rule"
                yield from rule(f"transpose = {toml(question)}", "it is square")


def _shifts(draft: Draft, weights: Weights) -> Iterator[str]:
    """Yield a rule with a question if the weights of norms are nearer to 0 than to 1 on average."""
    norms = [
        each.given for each in draft.match.pairs if each.given.role.what == "norm" and each.own[0].role.kind == "weight"
    ]
    values = [float(weights[name].float().mean()) for each in norms for name in each.names]
    if values and sum(values) / len(values) < NEAR_ZERO:
        question = f"{QUESTION}: norm\\.weight$ if norms multiply by 1 + weight, else remove this rule"
        yield from rule(f"shift = {{ pattern = {toml(question)}, by = 1.0 }}", "they are near 0")
