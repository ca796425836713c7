"""Reference results of an encoder-only model: the outputs of whole texts, and the most probable labels or tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import Checkpoint
from txport.errors import UnsupportedError
from txport.models.facts import LOGITS, Facts
from txport.models.model import Model
from txport.proof.masks import largest_of
from txport.proof.metrics import Metric
from txport.proof.parity.calls import no_crash
from txport.proof.parity.cases import Case
from txport.proof.parity.exact import Exact, largest_difference
from txport.proof.parity.measures import INFERRED, WHOLE, Comparison, compare
from txport.proof.parity.quality import BATCH, Texts, compare_quality
from txport.proof.parity.tokens import TINY, Tie, TokenComparison
from txport.proof.parity.tolerances import DRAWS, Tolerance
from txport.proof.reports.report import Report
from txport.runtimes.base import EncoderRuntime, GraphRuntime
from txport.runtimes.inputs import infer
from txport.runtimes.pytorch import TorchRuntime
from txport.system.arrays import Array
from txport.text.base import encode_within
from txport.text.load import tokenizer_of

Sources = Sequence[Sequence[int]]


class EncoderTruth:
    """The outputs of all cases in float64, with the bundle's weights, as `Exact.reproduced` computes them."""

    def __init__(
        self, bundle: Bundle, checkpoint: Checkpoint, exact: Exact, cases: list[Case], texts: Texts, metric: Metric
    ) -> None:
        self._bundle = bundle
        self._exact = exact
        self._texts = texts
        self._metric = metric
        self.cases = cases
        self._facts = checkpoint.facts
        with exact.reproduced():
            self._right = {case.name: joined(exact.model, case.sources) for case in cases}
        self.pytorch = self._compare_pytorch(checkpoint)
        original = TorchRuntime(Exact.of(checkpoint.model).model)
        self._labels = likeliest_labels(bundle, original, texts) if texts else []

    def _compare_pytorch(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Return the error of PyTorch itself in fp32, with the checkpoint's weights; of a quantised bundle, nothing."""
        if self._bundle.manifest.quantization:
            return {}
        exact = self._exact if self._exact.own.model is checkpoint.model else Exact.of(checkpoint.model)
        differences, largest = [], []
        for case in self.cases:  # the outputs of all may be many gigabytes
            right, own = joined(exact.model, case.sources), joined(checkpoint.model, case.sources)
            differences += [largest_difference(right[name], own[name]) for name in right]
            largest += [largest_of(each) for each in right.values()]
        return {"worst_logit_difference": max(differences), "largest_logit": max(largest)}

    def compare(self, report: Report, label: str, runtime: GraphRuntime, tolerance: Tolerance) -> None:
        """See `Truth.compare`."""
        assert isinstance(runtime, EncoderRuntime)
        for case in self.cases:
            with no_crash(f"{label}, case {case.name}: a batch of texts"):
                actual = join(infer(runtime, case.sources, self._facts), self._facts)
            own = cache(partial(self._own, case))
            right = self._right[case.name]
            for name, expected in right.items():
                report.tensors.append(_compare_output(case, label, name, expected, actual[name], own, tolerance))
            if self._facts.ability != "embed":
                choices = partial(choices_of, self._facts, case.sources)
                pair = choices(right), choices(actual)
                drawn = partial(_chosen, choices, own)
                report.tokens.append(_compare_choices(case, label, self._facts, *pair, drawn, tolerance))
        if self._texts:
            with no_crash(f"{label}, texts: a batch of texts"):
                labels = likeliest_labels(self._bundle, runtime, self._texts)
            quality = compare_quality(label, labels, self._labels, self._texts, self._metric, tolerance)
            report.quality.append(quality)

    def _own(self, case: Case, draw: int) -> dict[str, Array]:
        """Return PyTorch's outputs in the precision; with random last bits if `draw` is not 0."""
        with self._exact.own.context(draw):
            return joined(self._exact.own.model, case.sources)


def joined(model: Model, sources: Sources) -> dict[str, Array]:
    """Run a model and return each output, concatenated over the sources: (rows or tokens, ...)."""
    return join(infer(TorchRuntime(model), sources, model.facts), model.facts)


def join(found: Sequence[dict[str, Array]], facts: Facts) -> dict[str, Array]:
    """Concatenate the outputs of several texts: (rows or tokens, ...)."""
    together = {each.name: np.concatenate if each.is_of_tokens else np.stack for each in facts.outputs}
    return {name: how([each[name] for each in found]) for name, how in together.items()}


def choices_of(facts: Facts, sources: Sources, outputs: Mapping[str, Array]) -> Array:
    """Return the numbers of which the largest of a row is chosen: (rows, C), of joined outputs.

    They are the logits over labels or tokens. Of a model that answers, they are those over the places of each text,
    of starts and then of ends; rows of shorter texts end with their least number.
    """
    if facts.ability != "answer":
        return outputs[LOGITS]
    ends = np.cumsum([len(source) for source in sources])[:-1]
    rows = [row for values in outputs.values() for row in np.split(values, ends)]
    longest = max(map(len, rows))
    return np.array([np.pad(row, (0, longest - len(row)), constant_values=row.min()) for row in rows])


def _chosen(choices: Callable[[Mapping[str, Array]], Array], own: Callable[[int], Any], draw: int) -> Array:
    return choices(own(draw))


def _compare_output(
    case: Case, label: str, name: str, expected: Array, actual: Array, own: Any, tolerance: Tolerance
) -> Comparison:
    """Compare one output over all texts of a case."""
    largest = largest_of(expected)
    allowed = tolerance.allowed(largest)
    rms = tolerance.allowed_rms
    hold = partial(
        compare, case.name, label, WHOLE, name, expected, tolerance=allowed, rms=rms, least=_size(expected),
        kind=INFERRED,
    )  # fmt: skip
    return tolerance.judge(hold(actual=actual), largest, lambda draw: hold(actual=own(draw)[name]))


def _size(expected: Array) -> float:
    return float(np.sqrt(np.square(expected, dtype=np.float64).mean()))


def _compare_choices(
    case: Case, label: str, facts: Facts, expected: Array, actual: Array, own: Any, tolerance: Tolerance
) -> TokenComparison:
    """Compare the most probable label or token of each row (rows, C); a different one passes only as a near-tie."""
    wanted = expected.argmax(axis=1)
    found = actual.argmax(axis=1)
    other = np.flatnonzero(wanted != found).tolist()
    ties = list[Tie]()
    wrong = None
    for row in other:
        margin = float(expected[row, wanted[row]] - expected[row, found[row]])
        error = noise = 0.0
        for draw in range(DRAWS):  # the first draw is often enough
            error = max(error, largest_difference(expected[row], own(draw)[row]))
            noise = tolerance.noise_of(largest_of(expected[row]), error)
            if margin <= 2 * noise:
                break
        else:
            wrong = {"row": row, "expected": int(wanted[row]), "actual": int(found[row])}
            break
        ties.append(Tie(margin, noise))
    closest = max(ties, key=lambda tie: tie.margin / max(tie.noise, TINY), default=Tie(0.0, 0.0))
    return TokenComparison(
        case=case.name,
        runtime=label,
        search=f"likeliest {'place' if facts.ability == 'answer' else 'label' if facts.labels else 'token'}",
        rows=len(wanted),
        equal=len(wanted) - len(other),
        near_ties=len(ties),
        wrong=wrong,
        margin=closest.margin,
        noise=closest.noise,
    )


def likeliest_labels(bundle: Bundle, runtime: EncoderRuntime, texts: Texts) -> list[str]:
    """Return the most probable label of each text.

    Raise `UnsupportedError` unless the model is a single-label classifier.
    """
    facts = bundle.manifest.facts
    if facts.ability != "classify":
        gives = ", ".join(each.name for each in facts.outputs)
        raise UnsupportedError(
            f"error rates need a model that generates or classifies; this model has the outputs {gives}"
        )
    if facts.function_to_apply != "softmax":
        raise UnsupportedError(
            "error rates need a single-label classifier; the labels of this model do not exclude each other"
        )
    tokenizer = tokenizer_of(bundle.texts, bundle.path, facts)
    encoded = [encode_within(tokenizer, facts.vocabulary.longest, text) for text in texts]
    order = sorted(range(len(encoded)), key=lambda at: len(encoded[at]))
    labels: dict[int, str] = {}
    for batch in _batches(order):
        found = infer(runtime, [encoded[at] for at in batch], facts)
        labels |= {at: facts.labels[int(each[LOGITS].argmax())] for at, each in zip(batch, found, strict=True)}
    return [labels[at] for at in range(len(texts))]


def _batches(order: Sequence[int]) -> Iterator[Sequence[int]]:
    yield from (order[start : start + BATCH] for start in range(0, len(order), BATCH))
