"""Proof that a bundle computes what PyTorch computes, in the form in which it ships.

Three comparisons, each against the checkpoint in PyTorch, in fp32 on the CPU: the weights inside the graphs,
the outputs of each graph over inputs chosen to break it, and the tokens that search finds.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txport import __version__, runtimes
from txport.exporters.weights import held_weights, holding
from txport.models.bundle import Bundle, load_bundle
from txport.models.checkpoint import Checkpoint, expected_tensors
from txport.models.config import TransformerConfig
from txport.models.errors import ParityError
from txport.models.ports import DECODER, ENCODER, LOGITS, STEP
from txport.models.tokenizer import load_tokenizer
from txport.proof.walks import Reference
from txport.runtimes.base import GraphRuntime, Runtime
from txport.search.generate import generate
from txport.search.options import Found, SearchOptions

Array = NDArray[Any]

# The largest difference to PyTorch in fp32 that counts as equal. fp32: absolute; rounding in another order, some
# hundred times over, stays under 3e-5. fp16: for values of about 1, and growing with the largest value of a tensor;
# 11 bits of significand, so 5e-4 for each of the roundings that a dozen sublayers add up. int8 and int4 are held
# against PyTorch with the very weights that the bundle holds, so that what is left comes of the activations' 8 bits:
# a step of 1/255 of a tensor's range, which outliers widen, in every product. A single number may be far off, so the
# whole tensor counts; the figure here is for the margin between two tokens.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "int8": 3e-1, "int4": 3e-1}
GROWS = ("fp16",)
RELATIVE = {"int8": 1.5e-1, "int4": 1.5e-1}  # of the error's root mean square over the tensor's
# How far a quantised weight may lie from the checkpoint's, in steps of its scale: by rounding, half a step; in
# 4 bits the largest of a block may be cut so that the others are finer.
STEPS = {8: 0.501, 4: 2.1}
WEIGHTED = (ENCODER, DECODER, STEP)
WEIGHTS = "weights"  # the case in which no graph runs
SEARCH_TOKENS = 32
BEAMS = 4


@dataclass(frozen=True)
class Case:
    """One batch of sources and how many target tokens each further call of the decoder gets."""

    name: str
    sources: list[list[int]]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """One tensor of one case: where it differs most, and by how much."""

    case: str
    runtime: str
    step: int
    tensor: str
    max_abs: float
    allowed: float
    index: tuple[int, ...]
    expected: float
    actual: float
    relative: float = 0.0  # the error's root mean square over the tensor's
    allowed_relative: float | None = None  # what counts in place of the largest difference, where it is given

    @property
    def badness(self) -> float:
        """The error over what is allowed; NaN if it is NaN."""
        if self.allowed_relative is not None:
            return self.relative / self.allowed_relative
        return self.max_abs / self.allowed if self.allowed else (0.0 if self.max_abs == 0 else self.max_abs / 1e-30)

    @property
    def passed(self) -> bool:
        """Whether the difference is allowed; NaN never is."""
        return self.badness <= 1


@dataclass(frozen=True)
class TokenComparison:
    """The tokens of one kind of search in one case: rows equal, near-ties, and the first row that is wrong."""

    case: str
    runtime: str
    search: str
    rows: int
    equal: int
    near_ties: int
    wrong: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether every row is equal, or as good as PyTorch's own within rounding."""
        return self.equal + self.near_ties == self.rows


@dataclass(frozen=True)
class Report:
    """All that was compared, and what with."""

    about: dict[str, Any]
    tensors: list[Comparison] = field(default_factory=list)
    tokens: list[TokenComparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(each.passed for each in self.tensors) and all(each.passed for each in self.tokens)

    @property
    def worst(self) -> Comparison:
        """The largest difference for what is allowed; a wrong weight comes first, since it explains the rest."""

        def badness(each: Comparison) -> tuple[bool, bool, float]:
            wrong_weight = each.case == WEIGHTS and not each.passed
            return wrong_weight, bool(np.isnan(each.badness)), each.badness

        return max(self.tensors, key=badness)

    def describe_worst(self) -> str:
        """What went wrong, in one line."""
        wrong = next((each for each in self.tokens if not each.passed), None)
        if self.worst.passed and wrong:
            return f"{wrong.runtime}, case {wrong.case}: {wrong.search} tokens differ: {wrong.wrong}"
        worst = self.worst
        where = f"{worst.runtime}, case {worst.case}, step {worst.step}: {worst.tensor}{list(worst.index)}"
        return f"{where} is {worst.actual:.6g}, expected {worst.expected:.6g} (difference {worst.max_abs:.3g})"

    def worst_of(self, tensor: str) -> float:
        """The largest absolute difference of one port, over all cases and runtimes; 0 if it was not compared."""
        return max((each.max_abs for each in self.tensors if each.tensor == tensor), default=0.0)

    def summary(self) -> dict[str, Any]:
        """What a manifest records."""
        return {
            "verdict": "pass" if self.passed else "fail",
            "runtimes": sorted({each.runtime for each in self.tokens}),
            "cases": len({each.case for each in self.tensors}),
            "tensors": len(self.tensors),
            "worst_logit_difference": float(f"{self.worst_of(LOGITS):.3g}"),
            "rows_searched": sum(each.rows for each in self.tokens),
            "near_ties": sum(each.near_ties for each in self.tokens),
            "seed": self.about["seed"],
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; NaN and infinity as strings, which JSON has no numbers for."""
        worst = asdict(self.worst)
        return {
            "verdict": "pass" if self.passed else "fail",
            **self.about,
            "worst_logit_difference": _number(self.worst_of(LOGITS)),
            "worst": {key: _number(value) for key, value in worst.items()},
            "cases": self._cases(),
        }

    def _cases(self) -> list[dict[str, Any]]:
        parts: list[Comparison | TokenComparison] = [*self.tensors, *self.tokens]
        keys = dict.fromkeys((each.case, each.runtime) for each in parts)
        return [self._case(*key) for key in keys]

    def _case(self, case: str, runtime: str) -> dict[str, Any]:
        tensors = [each for each in self.tensors if (each.case, each.runtime) == (case, runtime)]
        tokens = [each for each in self.tokens if (each.case, each.runtime) == (case, runtime)]
        return {
            "case": case,
            "runtime": runtime,
            "verdict": "pass" if Report({}, tensors, tokens).passed else "fail",
            "tensors": [
                {key: _number(value) for key, value in asdict(each).items() if key not in ("case", "runtime")}
                for each in tensors
            ],
            "tokens": [asdict(each) for each in tokens],
        }


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def check(bundle: Bundle, checkpoint: Checkpoint, providers: Mapping[str, str], seed: int = 0) -> Report:
    """Compare a bundle with its checkpoint on each runtime of `providers` (runtime -> provider).

    Raises `UnsupportedError` if the checkpoint is not the one that the bundle was made from, `ParityError`
    where a graph does not run at all.
    """
    bundle.require_source(checkpoint.name, checkpoint.sha256)
    load_bundle(bundle.path)
    report = Report(_about(bundle, providers, seed))
    report.tensors.extend(compare_weights(bundle, checkpoint))
    cases = draw_cases(bundle, seed)
    precision = bundle.manifest.precision
    checkpoint = holding(bundle, checkpoint)
    reference, graphs = runtimes.load_torch(checkpoint), Reference(checkpoint.model, bundle.manifest)
    for name, provider in providers.items():
        runtime = runtimes.load(name, bundle, provider=provider)
        label = name if provider == "cpu" else f"{name} {provider}"
        for case in cases:
            report.tensors.extend(compare_graphs(case, label, runtime, graphs, precision, seed))
        for case in cases:  # once every graph is known to run on every shape
            report.tokens.extend(compare_search(case, label, runtime, reference, checkpoint, precision))
    return report


def _about(bundle: Bundle, providers: Mapping[str, str], seed: int) -> dict[str, Any]:
    packages = ("torch", "onnx", "onnxscript", "numpy")
    return {
        "checkpoint": bundle.manifest.checkpoint,
        "target": bundle.manifest.target,
        "precision": bundle.manifest.precision,
        "files": bundle.manifest.files,
        "providers": dict(providers),
        "tolerance": TOLERANCES[bundle.manifest.precision],
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            "txport": __version__,
            **{name: version(name) for name in packages},
            **runtimes.versions(),
        },
        "machine": platform.machine(),
    }


def draw_cases(bundle: Bundle, seed: int) -> list[Case]:
    """The cases that find what breaks in practice: shapes at the edges, padding on every row, real input."""
    config, rng = bundle.manifest.config, np.random.default_rng(seed)
    longest = config.max_length
    middle = max(1, min(longest // 2, 11))

    def draw(*lengths: int) -> list[list[int]]:
        special = {config.pad_id, config.bos_id, config.eos_id}
        allowed = [id_ for id_ in range(config.source_vocab_size) if id_ not in special] or [config.eos_id]
        return [[*(int(id_) for id_ in rng.choice(allowed, max(0, n - 1))), config.eos_id] for n in lengths]

    cases = [
        Case("one row", draw(middle), _steps(config, 1, 1, 1, 1)),
        Case("length 1", draw(1), _steps(config, 1, 2)),
        Case("padded rows", draw(middle, 1, max(1, middle // 2), middle - 1 or 1), _steps(config, 3, 1, 2)),
        Case("longer than traced", draw(min(longest, 48), min(longest, 37)), _steps(config, 17, 1, 5)),
        Case("longest", draw(longest), _steps(config, longest - 1, 1)),
    ]
    if bundle.samples:
        tokenizer = load_tokenizer(bundle.tokenizer, config)
        cases.append(Case("real", [tokenizer.encode(text) for text in bundle.samples], _steps(config, 1, 4, 1)))
    return cases


def _steps(config: TransformerConfig, *lengths: int) -> tuple[int, ...]:
    """As many of the calls as fit into the longest target."""
    total, kept = 0, []
    for length in lengths:
        if length > 0 and total + length <= config.max_length:
            total += length
            kept.append(length)
    return tuple(kept)


def compare_weights(bundle: Bundle, checkpoint: Checkpoint) -> Iterator[Comparison]:
    """Each weight in each graph with the checkpoint's: bit for bit, or, if quantised, in steps of its scale."""
    own = expected_tensors(checkpoint.model)
    names = {id(tensor): name for name, tensor in own.items()}
    aliases = {name: names[id(p)] for name, p in checkpoint.model.named_parameters(remove_duplicate=False)}
    for role in (role for role in bundle.manifest.graphs if role in WEIGHTED):
        for held in held_weights(bundle.file(role)):
            if held.name not in aliases:
                continue
            expected = own[aliases[held.name]].detach().numpy().astype(bundle.manifest.dtype)
            if held.steps is None:
                yield compare(WEIGHTS, role, 0, held.name, expected, held.values, 0.0)
            else:
                values = (expected / held.steps, held.values / held.steps)
                yield compare(WEIGHTS, role, 0, held.name, *values, STEPS[held.bits])


def compare_graphs(
    case: Case, label: str, runtime: GraphRuntime, reference: Reference, precision: str, seed: int
) -> Iterator[Comparison]:
    """Every output of every graph, call by call, each call fed what PyTorch computed before."""
    for call in reference.walk(case.sources, case.steps, seed):
        where = f"{label}, case {case.name}, step {call.step}"
        actual = _run(runtime, call.role, call.inputs, where)
        for tensor, values in call.expected.items():
            found = compare(case.name, label, call.step, tensor, values, actual[tensor], allowed(values, precision))
            yield dataclasses.replace(found, allowed_relative=RELATIVE.get(precision))


def _run(runtime: GraphRuntime, role: str, inputs: dict[str, Array], where: str) -> dict[str, Array]:
    try:
        return runtime.run_graph(role, inputs)
    except Exception as error:  # each runtime has errors of its own
        raise ParityError(f"{where}: the {role} graph does not run: {error}") from error


def allowed(expected: Array, precision: str) -> float:
    """How far a tensor may be from what PyTorch computes."""
    largest = float(np.abs(expected).max(initial=1.0)) if precision in GROWS else 1.0
    return TOLERANCES[precision] * largest


def compare(
    case: str, runtime: str, step: int, tensor: str, expected: Array, actual: Array, tolerance: float
) -> Comparison:
    """Where two tensors differ most; a difference of shape counts as infinite."""
    if expected.shape != actual.shape:
        sizes = (float(np.prod(expected.shape)), float(np.prod(actual.shape)))
        return Comparison(case, runtime, step, f"{tensor} (shape)", np.inf, tolerance, (), *sizes)
    if expected.size == 0:
        return Comparison(case, runtime, step, tensor, 0.0, tolerance, (), 0.0, 0.0)
    difference = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
    index = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), expected.shape)
    return Comparison(
        case=case,
        runtime=runtime,
        step=step,
        tensor=tensor,
        max_abs=float(difference[index]),
        allowed=tolerance,
        index=tuple(int(i) for i in index),
        expected=float(expected[index]),
        actual=float(actual[index]),
        relative=_rms(difference) / max(_rms(expected), 1e-30),
    )


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 0.0


def compare_search(
    case: Case, label: str, runtime: Runtime, reference: Runtime, checkpoint: Checkpoint, precision: str
) -> Iterator[TokenComparison]:
    """Greedy and beam tokens, row by row; a row that differs passes only as a near-tie by PyTorch's own score."""
    config = checkpoint.config
    length = min(SEARCH_TOKENS, config.max_length)
    for search, beams in (("greedy", 1), (f"beam {BEAMS}", BEAMS)):
        options = SearchOptions(max_new_tokens=length, beams=beams)
        expected = [found[0] for found in generate(reference, case.sources, config, options)]
        actual = [found[0] for found in generate(runtime, case.sources, config, options)]
        different = [row for row, (e, a) in enumerate(zip(expected, actual, strict=True)) if e.tokens != a.tokens]
        tied = [
            row for row in different if near_tie(checkpoint, case.sources[row], expected[row], actual[row], precision)
        ]
        wrong = next((row for row in different if row not in tied), None)
        yield TokenComparison(
            case=case.name,
            runtime=label,
            search=search,
            rows=len(expected),
            equal=len(expected) - len(different),
            near_ties=len(tied),
            wrong=None
            if wrong is None
            else {"row": wrong, "expected": expected[wrong].tokens, "actual": actual[wrong].tokens},
        )


def near_tie(checkpoint: Checkpoint, source: list[int], expected: Found, actual: Found, precision: str) -> bool:
    """Whether PyTorch itself finds the other tokens as good as its own, within rounding.

    That is either the mean over each of the targets, by which beam search ranks them (where 8 or 4 bits make
    search prune others, it may also find better ones), or the first two tokens that differ: what follows them
    follows from other beginnings.
    """
    scores = [score_of(checkpoint, source, tokens) for tokens in (expected.tokens, actual.tokens)]
    worse = float(scores[0].mean() - scores[1].mean())
    if (worse if precision in RELATIVE else abs(worse)) <= TOLERANCES[precision]:
        return True
    pairs = zip(expected.tokens, actual.tokens, strict=False)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return first is not None and abs(float(scores[0][first] - scores[1][first])) <= 2 * TOLERANCES[precision]


@torch.inference_mode()
def score_of(checkpoint: Checkpoint, source: list[int], tokens: Sequence[int]) -> Array:
    """The log-probability of each token of a target, by PyTorch."""
    target = torch.tensor([[checkpoint.config.bos_id, *tokens]])
    logits = checkpoint.model(torch.tensor([source]), torch.tensor([len(source)]), target[:, :-1])
    log_probs = torch.log_softmax(logits, dim=2)
    values: Array = log_probs.gather(2, target[:, 1:, None])[0, :, 0].double().numpy()
    return values


def table(report: Report) -> Iterable[tuple[str, ...]]:
    """Rows to show: runtime, case, tensors compared, largest difference, tokens, verdict."""
    for case in report.to_dict()["cases"]:
        differences = [float(each["max_abs"]) for each in case["tensors"]]
        tokens = [_describe_tokens(each) for each in case["tokens"]]
        yield (
            case["runtime"],
            case["case"],
            str(len(differences)),
            f"{max(differences, default=0.0):.2e}",
            ", ".join(tokens),
            case["verdict"],
        )


def _describe_tokens(each: Mapping[str, Any]) -> str:
    ties = f" + {each['near_ties']} near-tie" if each["near_ties"] else ""
    return f"{each['search']} {each['equal']}/{each['rows']}{ties}"
