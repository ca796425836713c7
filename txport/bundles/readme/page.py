"""The README of a bundle, made only from its manifest and the names of its files, so that it is reproducible.

`page.md` and `program.txt` have the texts of all models. A mark at the end of a line says when the line is kept, with
`#: `, or the block that begins with it, with `#:: `.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any, get_args

from txport.bundles.comparisons import describe_calibrated, describe_loss, describe_original
from txport.bundles.manifest import STAND_IN, STOOD_IN, Manifest
from txport.bundles.metadata import target_start
from txport.bundles.readme import tables
from txport.models.facts import Ability, Facts, Function, Pooled, Tokens
from txport.models.names import TARGET_TOKENIZER, TEXT, TOKENIZER
from txport.system.markdown import code, plain

README = "README.md"
MARK = re.compile(r"  #(::?) (.+)$")
MOST_LABELS = 50  # in a list
RULES = (  # settings that forbid or force tokens, in transformers' words; the program obeys them
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "min_new_tokens",
)


def readme(manifest: Manifest, files: Collection[str]) -> str:
    """Return the page, as Markdown; `files` are the names of the other files."""
    marks = {**_of_model(manifest), **_of_bundle(manifest, files)}
    values = _values(manifest)
    facts = manifest.facts
    return _read("page.md", marks, "\n\n").format(
        **values,
        title=f"{plain(manifest.checkpoint['name'])}, {manifest.target} {manifest.precision}",
        architecture=plain(manifest.architecture),
        manifest=manifest,
        facts=facts,
        source=facts.source,
        target=facts.target,
        about=tables.table(["", ""], _about(manifest)),
        program=Template(_read("program.txt", marks, "\n\n\n")).substitute(values),
        left_out=", ".join(map(code, _left_out(manifest))),
        not_followed=", ".join(f"{code(name)} {code(str(value))}" for name, value in manifest.not_followed.items()),
        labels=_labels(facts),
        prompts=_prompts(manifest.generation),
        windows=" or ".join(map(str, facts.windows)),
        bits=manifest.precision.removeprefix("int"),
        writer=TARGET_TOKENIZER if TARGET_TOKENIZER in files else TOKENIZER,
        graphs=tables.graphs(manifest),
    )


def _read(name: str, marks: Mapping[str, bool], space: str) -> str:
    """Return a text without the blocks, which `space` divides, and the lines whose marks do not hold."""
    blocks: list[str] = []
    for block in Path(__file__).with_name(name).read_text(encoding="utf-8").rstrip("\n").split(space):
        lines = [(line, MARK.search(line)) for line in block.split("\n")]
        first = lines[0][1]
        if first is None or first[1] == ":" or marks[first[2]]:
            kept = (MARK.sub("", line) for line, mark in lines if mark is None or marks[mark[2]])
            blocks.append("\n".join(kept))
    return space.join(blocks) + "\n"


def _of_model(manifest: Manifest) -> dict[str, bool]:
    """Return whether the marks that depend on the model hold."""
    facts = manifest.facts
    ability = facts.ability
    has_hidden = ability == "embed" and not facts.pools
    pooling = manifest.generation.get("pooling", "mean")
    return {
        "generates": facts.generates,
        "source": facts.is_encoder_decoder,
        "tokens": facts.is_encoder_decoder and facts.masks_source,
        "features": facts.is_encoder_decoder and not facts.masks_source,
        "prompt": facts.is_causal,
        "rules": bool(_rules(manifest)),
        "no rules": not _rules(manifest),
        "align": facts.attention is not None,
        "encode": ability is not None,
        "logits": ability not in ("embed", "answer"),
        **{name: ability == name for name in get_args(Ability)},
        **{
            f"{kind} {name}": (ability, facts.function_to_apply) == (kind, name)
            for kind in ("classify", "tag")
            for name in get_args(Function)
        },
        "pools": facts.pools,
        "hidden states": has_hidden,
        **{name: has_hidden and pooling == name for name in get_args(Pooled)},
        "prompts": bool(manifest.generation.get("prompts")),
        "normalize": has_hidden and bool(manifest.generation.get("normalize")),
        "windows of a decoder": bool(facts.windows and facts.is_causal),
        "windows of an encoder": bool(facts.windows and not facts.is_causal),
        "labels": bool(facts.labels),
        "ids of a source": isinstance(facts.source, Tokens),
        "special ids": isinstance(facts.source, Tokens) and bool(facts.source.before or facts.source.after),
        "pairs of texts": facts.has_token_types,
    }


def _prompts(generation: Mapping[str, Any]) -> str:
    """Return the names and texts of the prompts, and which is the default."""
    prompts = ", ".join(f"{code(name)}: {code(repr(text))}" for name, text in generation.get("prompts", {}).items())
    default = f"; by default {code(generation['prompt'])}" if generation.get("prompt") else ""
    return prompts + default + ("" if generation.get("include_prompt", True) else "; its tokens are not pooled")


def _of_bundle(manifest: Manifest, files: Collection[str]) -> dict[str, bool]:
    """Return whether the marks that depend on the target, the precision or the files hold."""
    facts, target = manifest.facts, manifest.made_for
    return {
        "without weights": manifest.weightless,
        "on CPU": not (manifest.weightless or target.on_gpu),
        "on GPU": not manifest.weightless and target.on_gpu,
        "all settings": facts.generates and not _left_out(manifest),
        "some settings": facts.generates and bool(_left_out(manifest)),
        "not followed": bool(manifest.not_followed),
        "portable": target.is_standard,
        "no loop": target.is_standard and not manifest.single,
        "single": target.is_standard and manifest.single,
        "ONNX Runtime": not target.is_standard,
        "portable loop": target.is_standard and facts.generates,
        "cpu loop": not target.is_standard and facts.generates,
        "types": facts.has_token_types and target.is_standard,
        "second ids": facts.has_token_types and not target.is_standard,
        "integers on CPU": manifest.is_quantised and not (target.on_gpu or target.is_standard),
        "quantised on GPU": manifest.is_quantised and target.on_gpu,
        "rows": manifest.rows is not None,
        "text": TOKENIZER in files and (facts.is_causal or facts.masks_source),
        "no tokenizer": TOKENIZER not in files,
        "writer": TOKENIZER in files and facts.generates,
        TEXT: TEXT in files,
    }


def _values(manifest: Manifest) -> dict[str, Any]:
    """Return the values of the variables of the program, which the page may name, too."""
    facts = manifest.facts
    driven = ((role, graph.file) for role, graph in manifest.driven.items() if graph.has_weights)
    return {
        "sessions": "\n".join(f'{role} = onnxruntime.InferenceSession("{file}")' for role, file in driven),
        "start": list(target_start(facts)) if facts.is_encoder_decoder else "",
        "before": list(facts.vocabulary.before),
        "after": list(facts.vocabulary.after),
        "ends": list(facts.writes.ends),
        "most": _most(manifest),
        "rules": pformat(_rules(manifest), width=96, compact=True),
        "mask": facts.vocabulary.mask,
        "dtype": manifest.dtype,
        "longest": facts.writes.longest,
        "places": facts.source.longest if facts.source else "",
        "ability": facts.ability,
        "more": _arguments(manifest),
    }


def _arguments(manifest: Manifest) -> str:
    """Return the arguments of the program's function beside the ids."""
    has_types = manifest.facts.has_token_types and manifest.made_for.is_standard
    return (", context=1" if manifest.facts.ability == "answer" else "") + (", types=None" if has_types else "")


def _most(manifest: Manifest) -> int:
    """Return the maximum number of new tokens; a causal model can have fewer after a long prompt."""
    facts = manifest.facts
    prefix = len(target_start(facts)) if facts.speech is not None else 0  # it counts as a part of the target
    limits = [facts.writes.longest - prefix, manifest.generation.get("max_new_tokens")]
    if facts.is_encoder_decoder and (longest := manifest.generation.get("max_length")) is not None:
        limits.append(longest - (prefix or 1))
    return min(limit for limit in limits if limit is not None)


def _rules(manifest: Manifest) -> dict[str, Any]:
    """Return the checkpoint's rules for the next token."""
    found = {name: manifest.generation.get(name) for name in RULES}
    return {name: value for name, value in found.items() if value not in (None, [], ())}


def _left_out(manifest: Manifest) -> list[str]:
    """Return the names of the checkpoint's settings for search that the program does not obey."""
    obeyed = (*RULES, "max_new_tokens", *(["max_length"] if manifest.facts.is_encoder_decoder else []))
    return [name for name in manifest.generation if name not in obeyed]


def _about(manifest: Manifest) -> Iterator[tuple[str, str]]:
    checkpoint = manifest.checkpoint
    yield "precision", plain(manifest.described_precision)
    yield "checkpoint", f"{code(checkpoint['name'])}, SHA-256 {code(checkpoint['sha256'])}"
    if "quantised" in checkpoint:
        yield "quantised before", plain(checkpoint["quantised"])
    for name, result in comparisons(manifest).items():
        yield name, plain(result)
    yield "made with", plain(", ".join(f"{name} {version}" for name, version in manifest.tools.items()))


def comparisons(manifest: Manifest) -> dict[str, str]:
    """Return what was compared and measured at export, without figures that depend on the machine."""
    found = {
        "parity with PyTorch": _parity(manifest),
        "comparison with the original": describe_original(manifest.original),
        "cost of few bits": describe_loss(manifest.loss, manifest.precision),
        "calibration": describe_calibrated(manifest.calibrated),
    }
    return {name: result for name, result in found.items() if result}


def _parity(manifest: Manifest) -> str:
    found = manifest.parity
    if manifest.weightless:
        return "not compared: these are graphs without weights"
    if not found:
        return "not compared yet"
    where = f", {STOOD_IN}" if STAND_IN in found.get("runtimes", ()) else ""
    cases, rows, seed = (found.get(name) for name in ("cases", "rows_searched", "seed"))
    return f"{found.get('verdict')}{where}: {cases} cases, {rows} rows searched or encoded, seed {seed}"


def _labels(facts: Facts) -> str:
    shown = ", ".join(f"{number} {plain(label)}" for number, label in enumerate(facts.labels[:MOST_LABELS]))
    rest = len(facts.labels) - MOST_LABELS
    return shown + (f", and {rest} more in the metadata" if rest > 0 else "")
