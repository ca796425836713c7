"""What few bits cost: the outputs of a quantised bundle beside those of the checkpoint in fp32.

Generated tokens are the bundle's own greedy ones, so that it needs no search in PyTorch: a row equals fp32's greedy row
if every token of it is the most probable one in fp32. Shape comments: N places, V numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.audio.reading import is_audio, read_audio
from txport.audio.spectrogram import drawn_features, log_mel
from txport.bundles.bundle import Bundle
from txport.bundles.comparisons import (
    AUTO_DISTANCE,
    AUTO_DIVERGENCE,
    LABELS,
    NEXT_TOKENS,
    PLACES,
    TOKENS,
    VECTORS,
    describe_loss,
)
from txport.checkpoints.checkpoint import Checkpoint, is_large
from txport.errors import TextError, TxportError, UnsupportedError
from txport.exporters.cpu.calibrate import Text
from txport.models.audio import Features
from txport.models.facts import Facts, Tokens
from txport.models.model import Model
from txport.models.names import LARGEST_SAMPLES
from txport.models.ops import padding_mask
from txport.proof.masks import bound_of, cut_off
from txport.proof.parity.cases import Draw, sides
from txport.proof.parity.exact import one_pass, passed
from txport.proof.parity.truth.encoding import choices_of, join
from txport.proof.reports.report import Report
from txport.runtimes.base import GraphRuntime
from txport.runtimes.inputs import Source, Sources, batch, infer
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions
from txport.search.scoring import logits
from txport.system.arrays import Array
from txport.system.documents import DocumentError, read_lines
from txport.text.load import chat_of, tokenizer_of

ANSWERED, MOST_TEXTS = 96, 256  # tokens that a model writes after each text of a calibration, and its texts
ROWS, FEW_ROWS = 8, 2  # sources; of features, which take long
MOST_DIVERGENCE = 690.0  # whose perplexity is a number
PART = 4  # of the frames of a source, for gradients
PADDED = -1e4  # logit of a place that a text does not have
NEW_TOKENS, PROMPT = 24, 16  # most tokens of a row; of a prompt that the bundle wrote
LENGTHS = (5, 11, 17, 8, 14, 20, 9, 12)  # of the random sources
DIGITS = 4
TINY = 1e-30
SAMPLES, OWN_TEXTS, OF_VOCABULARY = "samples", "texts that the bundle wrote", "texts of random tokens"
RANDOM, RANDOM_FEATURES, AUDIO = "random lists of tokens", "random features", "audio files"
HEARD = "samples"  # the folder of audio files beside the weights
VALUES = "values"  # what the share of a model of values is of


@dataclass(frozen=True)
class Loss:
    """The record of what few bits cost (`bundles.comparisons`), and whether the outputs are right only by chance.

    `divergence`: see `divergence_of`. Other than the share of other tokens, it tells a small cost from a few places.
    """

    record: dict[str, Any]
    by_chance: bool
    divergence: float


@dataclass(frozen=True)
class Trial:
    """Sources to measure on, what they are, and the tokens that a bundle generates for them (none: an encoder)."""

    sources: Sources
    inputs: str
    targets: Sequence[Sequence[int]]


def measure_loss(bundle: Bundle, checkpoint: Checkpoint, runtime: Any) -> Loss:
    """Compare the outputs of a quantised bundle on a runtime with those of PyTorch in fp32."""
    trial = trial_of(bundle, checkpoint, runtime)
    how = _of_generator if bundle.manifest.facts.generates else _of_encoder
    return how(bundle.manifest.facts, trial, checkpoint.model, runtime)


def trial_of(bundle: Bundle, checkpoint: Checkpoint, runtime: Any) -> Trial:
    """Return what a bundle is measured on."""
    facts = bundle.manifest.facts
    sources, inputs = _sources(bundle, checkpoint, runtime)
    if not facts.generates:
        return Trial(sources, inputs, [])
    options = SearchOptions(max_new_tokens=min(NEW_TOKENS, sides(facts)[1]), scores=False)
    return Trial(sources, inputs, [each[0].tokens for each in generate(runtime, sources, facts, options)])


def outputs_of(model: Model, trial: Trial) -> list[Array]:
    """Return the logits before each token of each target, or the outputs of an encoder: (N, V) each.

    A label that excludes no other one is a place: its logits are (z, 0), of which softmax gives the sigmoid of z.
    """
    facts = model.facts
    if facts.generates:
        return list(_passes(model, trial.sources, trial.targets))
    return _rows(facts, trial, join(infer(TorchRuntime(model), trial.sources, facts), facts))


def divergence_of(facts: Facts, expected: Sequence[Array], actual: Sequence[Array]) -> float:
    """Return how far outputs are from others, mean over places.

    That is 1 - cosine of vectors, half of the squared relative error of values, else Kullback-Leibler.
    """
    how = _half_squares if facts.function_to_apply == "none" else _divergences
    how = _distances if facts.ability == "embed" else how
    return float(np.concatenate([how(*pair) for pair in zip(expected, actual, strict=True)]).mean())


def _sources(bundle: Bundle, checkpoint: Checkpoint, runtime: GraphRuntime) -> tuple[list[Source], str]:
    """Return the sources to measure on, and what they are: real texts if the bundle has some, or real audio."""
    facts = bundle.manifest.facts
    reads = facts.reads
    if isinstance(reads, Features):
        heard: list[Source] = list(_heard(checkpoint, reads))
        return (heard, AUDIO) if heard else ([drawn_features(reads, each) for each in range(FEW_ROWS)], RANDOM_FEATURES)
    most = sides(facts)[0]
    tokenizer = _tokenizer(bundle)
    if bundle.samples and tokenizer is not None:
        known = [tokenizer.encode(text)[:most] for text in bundle.samples[:ROWS]]
        return [ids for ids in known if ids], SAMPLES
    draw = Draw(facts, np.random.default_rng(0))
    drawn = draw.sources(*(min(length, most) for length in LENGTHS))
    if facts.is_causal:
        length = max(1, min(PROMPT, most - 1))
        return [_written(runtime, facts, int(ids[0]), length, seed)[:most] for seed, ids in enumerate(drawn)], OWN_TEXTS
    if tokenizer is None:
        return drawn, RANDOM
    try:
        return [tokenizer.encode(tokenizer.decode(ids))[:most] for ids in drawn], OF_VOCABULARY
    except TxportError:  # it does not read every text that it writes
        return drawn, RANDOM


def _written(runtime: GraphRuntime, facts: Facts, start: int, length: int, seed: int) -> list[int]:
    """Return a first token, which may be that of every text, and those that a model samples after it."""
    options = SearchOptions(max_new_tokens=length, do_sample=True, seed=seed)
    ((found,),) = generate(runtime, [[start]], facts, options)
    return [start, *found.tokens]


def _heard(checkpoint: Checkpoint, reads: Features) -> Iterator[Array]:
    """Yield the features (M, F) of the first audio files in the folder `samples` of a checkpoint, if it has one."""
    place = checkpoint.folder and checkpoint.folder / HEARD
    files = sorted(path for path in place.iterdir() if is_audio(str(path))) if place and place.is_dir() else []
    for path in files[: FEW_ROWS if is_large(checkpoint.outline) else ROWS]:
        yield log_mel(read_audio(path, reads), reads)[:, : reads.frames]


def _tokenizer(bundle: Bundle) -> Any:
    """Return the tokenizer of a bundle, None if it has none that works here."""
    try:
        return tokenizer_of(bundle.texts, bundle.path, bundle.manifest.facts)
    except TxportError:
        return None


def _of_generator(facts: Facts, trial: Trial, model: Model, runtime: GraphRuntime) -> Loss:
    actual = logits(runtime, trial.sources, trial.targets, facts)
    rows = list(zip(outputs_of(model, trial), actual, strict=True))
    equal = [one.argmax(axis=1) == other.argmax(axis=1) for one, other in rows]
    until = [len(each) if each.all() else int(each.argmin()) for each in equal]
    divergence = divergence_of(facts, *zip(*rows, strict=True))
    every = np.concatenate(equal)
    errors, by_chance = _errors(rows)
    best = np.concatenate([one.argmax(axis=1) for one, _ in rows])
    guess = np.unique(best, return_counts=True)[1].max() / len(best)  # by always the same token
    record = {
        "inputs": trial.inputs,
        "measure": NEXT_TOKENS,
        "rows": len(rows),
        "places": len(every),
        "share": 1 - float(every.mean()),
        "worst": 1 - min(float(each.mean()) for each in equal),
        **errors,
        "equal_rows": sum(bool(each.all()) for each in equal),
        "equal_until": float(np.mean(until)),
        "perplexity_ratio": float(np.exp(min(divergence, MOST_DIVERGENCE))),
    }
    return Loss(_short(record), by_chance and float(every.mean()) <= guess, divergence)


def _passes(model: Model, sources: Sources, targets: Sequence[Sequence[int]]) -> Iterator[Array]:
    """Yield the logits (T, V) before each token of each target; features, which take much memory, row by row."""
    if isinstance(model.facts.reads, Features):
        for source, target in zip(sources, targets, strict=True):
            yield from one_pass(model, [source], [target])
    else:
        yield from one_pass(model, sources, targets)


def tensors_of(model: Model, trial: Trial) -> list[Tensor]:
    """Return the outputs of `outputs_of` as tensors (N, V), with their gradients.

    Of features there are those of the beginning of one source: time and memory grow with the square of the frames.
    """
    facts = model.facts
    if not facts.generates:
        ids, lengths = map(torch.from_numpy, batch(trial.sources, facts))
        mask = padding_mask(lengths, ids.shape[1])
        if facts.ability == "answer":
            return [values.masked_fill(~mask, PADDED) for values in model.infer(ids, mask)]
        found = zip(facts.outputs, model.infer(ids, mask), strict=True)
        rows = [values[mask] if output.is_of_tokens else values for output, values in found]
        return [F.pad(each.reshape(-1, 1), (0, 1)) for each in rows] if facts.function_to_apply == "sigmoid" else rows
    if isinstance(facts.reads, Features):
        beginning = np.asarray(trial.sources[0])[:, : facts.reads.frames // PART]
        return list(passed(model, [beginning], trial.targets[:1]))
    return list(passed(model, trial.sources, trial.targets))


def _of_encoder(facts: Facts, trial: Trial, model: Model, runtime: Any) -> Loss:
    actual = join(infer(runtime, trial.sources, facts), facts)
    rows = list(zip(outputs_of(model, trial), _rows(facts, trial, actual), strict=True))
    if facts.ability == "embed":
        measure = VECTORS
        costs = np.concatenate([_distances(*row) for row in rows])
    elif facts.function_to_apply == "none":
        measure = VALUES
        costs = np.minimum(np.concatenate([np.sqrt(2 * _half_squares(*row)) for row in rows]), 1.0)
    else:
        measure = PLACES if facts.ability == "answer" else LABELS if facts.labels else TOKENS
        costs = np.concatenate([one.argmax(axis=1) != other.argmax(axis=1) for one, other in rows]).astype(float)
    centred = facts.function_to_apply in (None, "softmax")
    errors, by_chance = zip(*(_errors([row], centred=centred) for row in rows), strict=True)
    record = {
        "inputs": trial.inputs,
        "measure": measure,
        "rows": len(trial.sources),
        "places": len(costs),
        "share": max(0.0, float(costs.mean())),
        "worst": max(0.0, float(costs.max())),
        **max(errors, key=lambda each: each["error"]),
    }
    return Loss(_short(record), all(by_chance), divergence_of(facts, *zip(*rows, strict=True)))


def _rows(facts: Facts, trial: Trial, outputs: Mapping[str, Array]) -> list[Array]:
    if facts.ability == "answer":
        return [choices_of(facts, trial.sources, outputs)]
    if facts.function_to_apply == "sigmoid":
        return [np.pad(values.reshape(-1, 1), ((0, 0), (0, 1))) for values in outputs.values()]
    return [values.reshape(-1, values.shape[-1]) for values in outputs.values()]


def _distances(expected: Array, actual: Array) -> Array:
    """Return 1 - cosine of each pair of rows (N, V) -> (N,)."""
    one, other = (each.astype(np.float64) for each in (expected, actual))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    distances: Array = 1 - np.einsum("nv,nv->n", one, other) / np.maximum(norms, TINY)
    return distances


def _half_squares(expected: Array, actual: Array) -> Array:
    """Return half of the squared error of each place, relative to the mean square of all: (N, V) twice -> (N,)."""
    one, other = (each.astype(np.float64) for each in (expected, actual))
    halves: Array = np.square(one - other).sum(axis=1) / max(2 * np.square(one).sum(axis=1).mean(), TINY)
    return halves


def _divergences(expected: Array, actual: Array) -> Array:
    """Return the Kullback-Leibler divergence of each place: (N, V) twice -> (N,)."""
    right, found = (_log_probs(each.astype(np.float64)) for each in (expected, actual))
    bound = bound_of(expected)
    difference = np.clip(right, -bound, None) - np.clip(found, -bound, None)
    divergences: Array = (np.exp(right) * difference).sum(axis=1)
    return divergences


def _log_probs(values: Array) -> Array:
    largest = values.max(axis=1, keepdims=True)
    log_probs: Array = values - (largest + np.log(np.exp(values - largest).sum(axis=1, keepdims=True)))
    return log_probs


def _centred(values: Array) -> Array:
    """Return the numbers (N, V) of some places without their mean, and without masks."""
    kept = cut_off(values, bound_of(values)).astype(np.float64)
    kept -= kept.mean(axis=1, keepdims=True)
    return kept


def _errors(rows: Sequence[tuple[Array, Array]], *, centred: bool = True) -> tuple[dict[str, float], bool]:
    """Return the mean and the largest error of a place, relative to its numbers around their mean, and `by_chance`.

    Numbers that are not `centred` are taken as they are, and errors are relative to the RMS of all places: one place
    may be near 0.

    Outputs are right by chance if they tell no more of their place than those of any other place: the error is as large
    as the numbers themselves, and no smaller than the distance to fp32's mean output. One row is in memory in float64.
    """
    errors, sizes = [], []
    total = np.zeros(rows[0][0].shape[1])
    for expected, actual in rows:
        right = _centred(expected) if centred else expected.astype(np.float64)
        total += right.sum(axis=0)
        sizes.append(np.linalg.norm(right, axis=1))
        right -= _centred(actual) if centred else actual
        errors.append(np.linalg.norm(right, axis=1))
    size, error = np.concatenate(sizes), np.concatenate(errors)
    relative = error / np.maximum(size if centred else np.sqrt(np.square(size).mean()), TINY)
    wrong, whole = np.square(error).sum(), np.square(size).sum()
    around = whole - np.square(total).sum() / len(size)
    by_chance = len(size) > 1 and not (wrong == 0 or wrong < around or wrong < whole)
    return {"error": float(relative.mean()), "worst_error": float(relative.max())}, bool(by_chance)


def _short(record: Mapping[str, object]) -> dict[str, object]:
    """Return the numbers to a few digits: more would differ from machine to machine."""
    return {name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for name, value in record.items()}


def measure(
    report: Report, bundle: Bundle, checkpoint: Checkpoint, runtime: GraphRuntime, max_loss: float | None
) -> None:
    """Add to a report what few bits cost, and the limits that this exceeds."""
    loss = measure_loss(bundle, checkpoint, runtime)
    report.about["loss"] = loss.record
    cost = describe_loss(loss.record, bundle.manifest.precision)
    if loss.by_chance:
        report.beyond.append(f"the outputs agree with those in fp32 no better than by chance; {cost}")
    elif max_loss is not None and loss.record["share"] > max_loss:
        report.beyond.append(f"the loss {loss.record['share']:.4g} is above the limit {max_loss:g}; {cost}")


def usual_aim(facts: Facts) -> float:
    """Return the divergence that `export --auto` aims at by default."""
    return AUTO_DISTANCE if facts.ability == "embed" else AUTO_DIVERGENCE


def calibration_texts(checkpoint: Checkpoint, path: Path) -> list[Text]:
    """Return the texts in a file, one a line, each with what a model that generates text writes after it.

    With a chat template, each line is a message, and the model answers it. Raises `UnsupportedError` for a model whose
    weights are not rounded so, and `TextError` for a file without text.
    """
    facts = checkpoint.facts
    if not isinstance(facts.reads, Tokens):
        raise UnsupportedError("calibrate is for models that read text; this one reads audio")
    if checkpoint.packed:
        raise UnsupportedError(f"calibrate rounds weights, and these are quantised already: {checkpoint.quantised}")
    try:
        lines = [line for line in read_lines(path, LARGEST_SAMPLES) if line.strip()]
    except DocumentError as error:
        raise TextError(str(error)) from error
    if not 0 < len(lines) <= MOST_TEXTS:
        raise TextError(f"{path} must hold 1 to {MOST_TEXTS} texts, one a line, got {len(lines)}")
    files, place = checkpoint.companions, checkpoint.folder or path.parent
    tokenizer = tokenizer_of(files, place, facts)
    reader = chat_of(files, place, tokenizer) or tokenizer
    texts = [reader.encode(line)[: sides(facts)[0]] for line in lines]
    if not facts.generates:
        return [Text(text) for text in texts]
    options = SearchOptions(max_new_tokens=min(ANSWERED, sides(facts)[1]), scores=False)
    answers = generate(TorchRuntime(checkpoint.model), texts, facts, options)
    pairs = [(text, each[0].tokens) for text, each in zip(texts, answers, strict=True)]
    if facts.is_encoder_decoder:
        return [Text(text, [facts.writes.start or 0, *tokens[:-1]]) for text, tokens in pairs]
    return [Text([*text, *tokens]) for text, tokens in pairs]
