"""`txport run` for encoder-only models: prints vectors, labels or masked tokens of texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from txport.cli import textio
from txport.cli.options import F, is_given
from txport.cli.outputs import INPUT
from txport.errors import UnsupportedError, brief
from txport.models.facts import Facts, Pooling, VectorPrecision

if TYPE_CHECKING:
    from txport.api.answers import Answer
    from txport.api.encoding import Fill, Floats, Label, Tag

ARRAY = ".npy"
TRUE = 0.5  # minimum probability of a printed label, if labels are independent
VECTORS = ("pooling", "normalize", "dimensions", "prompt", "precision", "ranges")
LABELS = ("labels", "template", "multi_label")
OF = {"embed": VECTORS, "classify": ("top", "pairs", *LABELS), "tag": (), "fill": ("top",)}  # a model's options
OF["answer"] = ("top", "pairs", "context", "impossible")
FLAGS = {name: f"--{name}".replace("_", "-") for names in OF.values() for name in names} | {"labels": "--label"}
Rows = Iterator[tuple[str, ...]]


def encoding_options(command: F) -> F:
    """Add the options for the outputs of encoder-only models."""
    normalize = "Vectors: normalise to L2 norm 1." + _otherwise("no")
    top = "Number of labels, answers, or tokens per mask, to print, one per line.  [default of tokens: 5]"
    pooling = "Vectors: how the vectors of a text's tokens become one; none: they do not." + _otherwise("mean")
    prompt = "Vectors: name of the bundle's prompt to put before each text; '' is none." + _otherwise("''")
    precision = "Vectors: type of the numbers, as in sentence-transformers; binary: eight bits in a byte."
    ranges = "Vectors of int8 and uint8: .npy file with the lowest and the highest number of each dimension, (2, D).  "
    pairs = "A line is two texts separated by a tab, which the model reads as a pair."
    label = "Zero-shot: any label, for a model of natural language inference.  [repeatable]"
    template = "Zero-shot: what a text with a --label implies, with {} for it.  [default: This example is {}.]"
    context = "Questions: file of the text that has the answers.  [default: each line has its own, after a tab]"
    impossible = "Questions: an answer may be none, as in SQuAD 2."
    several = "Zero-shot: a text can have several of the --label, or none."
    for option in (
        click.option("--impossible", is_flag=True, help=impossible),
        click.option("--context", type=INPUT, help=context),
        click.option("--multi-label", is_flag=True, help=several),
        click.option("--template", metavar="TEXT", help=template),
        click.option("--label", "labels", multiple=True, metavar="LABEL", help=label),
        click.option("--pairs", is_flag=True, help=pairs),
        click.option("--top", type=click.IntRange(1), help=top),
        click.option("--ranges", type=INPUT, help=ranges + "[default: those of the texts]"),
        click.option("--precision", type=click.Choice(get_args(VectorPrecision)), help=precision),
        click.option("--prompt", metavar="NAME", help=prompt),
        click.option("--dimensions", type=click.IntRange(1), help="Vectors: the first so many numbers of each."),
        click.option("--normalize/--no-normalize", default=None, help=normalize),
        click.option("--pooling", type=click.Choice(get_args(Pooling)), help=pooling),
    ):
        command = option(command)
    return command


def _otherwise(value: str) -> str:
    """Return the help text for the default of an option that the bundle can set."""
    return f"  [default: as the bundle says, or {value}]"


def require_fit(facts: Facts, output: Path | None, generating: Iterable[str]) -> None:
    """Raise `UnsupportedError` for options that do not apply to the model; `generating`: given flags of generation."""
    able = facts.ability
    gives = ", ".join(each.name for each in facts.outputs)
    model = f"this model is encoder-only with the outputs {gives}" if able else "this model generates"
    if able and (flags := list(generating)):
        raise UnsupportedError(f"{', '.join(flags)} needs a generating model; {model}")
    for name, flag in FLAGS.items():
        if is_given(name) and name not in OF.get(able or "", ()):
            kinds = " or ".join(each for each, names in OF.items() if name in names)
            raise UnsupportedError(f"{flag} needs a model that can {kinds}; {model}")
    if is_array(output) and able != "embed":
        raise UnsupportedError(f"--output {output} needs a model that can embed; {model}")


def run(
    model: Any,
    texts: Iterable[str],
    total: int | None,
    output: Path | None,
    out: textio.Rows,
    as_json: bool,
    shown: dict[str, Any],
    how: dict[str, object],
) -> None:
    """Write the result of the model for each text; `shown`: the values of `FLAGS`, `how`: options of the batches.

    Raises `UnsupportedError` for JSON together with an array.
    """
    if is_array(output) and as_json:
        raise UnsupportedError(f"--json writes text and --output {output} writes an array; remove one of them")
    given: Iterable[Any] = texts
    if shown["context"]:
        context = _read_context(shown["context"])
        given = ((text, context) for text in texts)
    elif shown["pairs"] or model.facts.ability == "answer":
        given = textio.split_pairs(texts)
    texts, told = itertools.tee(given)
    found, rows = WAYS[model.facts.ability](model, texts, shown, how)
    results = textio.with_progress(found, total, out.stream)
    if is_array(output):
        _write_array(out.stream, results, shown, model.facts.vector_size)
        return
    count = unknown = 0
    for text, result in zip(told, results, strict=True):
        is_known = len(result) > 0
        out.put(rows(text, result, as_json) if is_known or as_json else [("",)])
        count = count + 1
        unknown = unknown + (not is_known)
    textio.tell_unknown(unknown, count)


def is_array(output: Path | None) -> bool:
    """Whether an output is an array, not lines."""
    return output is not None and output.suffix == ARRAY


def _write_array(stream: IO[str], vectors: Iterable[Floats], shown: Mapping[str, Any], width: int) -> None:
    """Write one array (N, D) of all vectors in NumPy's format; raise `UnsupportedError` for one vector per token."""
    import numpy as np

    from txport.api.encoding import stacked

    if shown["pooling"] == "none":
        raise UnsupportedError(f"an {ARRAY} file has one vector per text; --pooling none returns one per token")

    found = list(vectors)
    array = np.array(found) if shown["precision"] and found else stacked(found, shown["dimensions"] or width)
    np.save(stream.buffer, array)  # type: ignore[attr-defined]  # of a file


Way = tuple[Iterator[Any], Callable[[Any, Any, bool], Rows]]


def _embed(model: Any, texts: Iterable[str], shown: Mapping[str, object], how: Mapping[str, object]) -> Way:
    def rows(text: str, vectors: Floats, as_json: bool) -> Rows:
        values = _numbers(vectors) if vectors.size else None
        name = "vector" if vectors.ndim == 1 else "vectors"
        yield (textio.to_json({"input": text, name: values} if as_json else values or []),)

    options = {name: shown[name] for name in VECTORS if shown[name] is not None}
    if not {"precision", "ranges"} & options.keys():
        return model.embed_iter(texts, **options, **how), rows
    if "ranges" in options:
        options["ranges"] = _read_ranges(options["ranges"])
    return iter(model.embed(texts, **options, **how)), rows


def _read_ranges(path: Any) -> Any:
    """Return the array of a file in NumPy's format; raise `UnsupportedError` if it is none."""
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UnsupportedError(f"--ranges {path} is no array in NumPy's .npy format: {brief(error)}") from error


def _numbers(array: Floats) -> list[object]:
    """Return the values as floats with the fewest digits that identify each fp32 value."""
    if array.dtype.kind in "iu":
        whole: list[object] = array.tolist()
        return whole
    return [_numbers(each) for each in array] if array.ndim > 1 else [float(str(each)) for each in array]


def _classify(model: Any, texts: Iterable[str], shown: Mapping[str, object], how: Mapping[str, object]) -> Way:
    others = _other_labels(shown)
    labels = others.get("labels", model.facts.labels)
    function = model.facts.function_to_apply if not others else "sigmoid" if others["multi_label"] else "softmax"
    least = TRUE if function == "sigmoid" and len(labels) > 1 else -math.inf

    def rows(text: str, labels: Sequence[Label], as_json: bool) -> Rows:
        if as_json:
            yield (textio.to_json({"input": text, "labels": [asdict(each) for each in labels]}),)
        elif shown["top"] is not None:
            yield from map(_scored, labels)
        elif function == "softmax":
            yield (labels[0].label,)
        else:
            yield tuple(field for each in labels if each.score >= least for field in _scored(each))

    return model.classify_iter(texts, top=shown["top"], **{**how, **others}), rows


def _other_labels(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Model.classify` for `--label`; {} without it."""
    labels = list(shown["labels"])
    for name in ("pairs",) if labels else ("template", "multi_label"):
        if shown[name]:
            problem = "can't be combined with --label" if labels else "needs a --label"
            raise UnsupportedError(f"{FLAGS[name]} {problem}")
    template = {} if shown["template"] is None else {"template": shown["template"]}
    return {"labels": labels, "multi_label": shown["multi_label"], "truncate": True, **template} if labels else {}


def _scored(label: Label) -> tuple[str, str]:
    return f"{label.score:.4f}", label.label


def _tag(model: Any, texts: Iterable[str], shown: Mapping[str, object], how: Mapping[str, object]) -> Way:
    def rows(text: str, tags: Sequence[Tag], as_json: bool) -> Rows:
        if as_json:
            yield (textio.to_json({"input": text, "tags": [asdict(each) for each in tags]}),)
        else:
            yield (" ".join(f"{each.token}/{each.label}" for each in tags),)

    return model.tag_iter(texts, **how), rows


def _fill(model: Any, texts: Iterable[str], shown: Mapping[str, object], how: Mapping[str, object]) -> Way:
    def rows(text: str, masks: Sequence[Sequence[Fill]], as_json: bool) -> Rows:
        if as_json:
            yield (textio.to_json({"input": text, "masks": [[asdict(each) for each in one] for one in masks]}),)
        else:
            yield from ((f"{each.score:.4f}", each.token) for one in masks for each in one)

    return model.fill_iter(texts, **({} if shown["top"] is None else {"top": shown["top"]}), **how), rows


def _answer(model: Any, pairs: Iterable[tuple[str, str]], shown: Mapping[str, Any], how: Mapping[str, object]) -> Way:
    def rows(pair: tuple[str, str], found: Sequence[Answer], as_json: bool) -> Rows:
        if as_json:
            yield (textio.to_json({"question": pair[0], "answers": [asdict(each) for each in found]}),)
        elif shown["top"] is None:
            yield (found[0].text,)
        else:
            yield from ((f"{each.score:.4f}", each.text) for each in found)

    return model.answer_iter(pairs, nbest=shown["top"] or 1, impossible=shown["impossible"], **how), rows


def _read_context(path: Path) -> str:
    """Return the text of a file; raise `UnsupportedError` if it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedError(f"--context {path} can't be read as text in UTF-8: {brief(error)}") from error


WAYS: dict[str, Callable[..., Way]] = {
    "embed": _embed,
    "classify": _classify,
    "tag": _tag,
    "fill": _fill,
    "answer": _answer,
}
