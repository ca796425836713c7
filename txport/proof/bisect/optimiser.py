"""A check whether ONNX Runtime's optimiser makes a correct graph wrong, and at which level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_ir
from txport.proof.bisect.isolation import Runner
from txport.proof.bisect.probe import shown
from txport.proof.parity.calls import compare_call
from txport.proof.parity.cases import Case
from txport.proof.parity.measures import Comparison, badness
from txport.proof.parity.replay import Call, Reference
from txport.proof.parity.tolerances import tolerance_of
from txport.runtimes.ort.onnx_runtime import ort

LEVELS = {
    "no": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@dataclass(frozen=True)
class Miscompiled:
    """A graph that is right without optimisation and wrong at `level`, the lowest such level."""

    role: str
    level: str
    worst: Comparison


def miscompiled(
    bundle: Bundle, roles: Iterable[str], reference: Reference, cases: Iterable[Case], seed: int
) -> Miscompiled | None:
    """Return the first graph whose output differs from PyTorch with all optimisations, but not without; else None."""
    graphs = {role: shown(read_ir(bundle.file(role)), bundle.manifest) for role in roles}

    def runner(role: str, level: str) -> Runner:
        packs = bool(bundle.manifest.quantization)
        return Runner(graphs[role], bundle.file(role).parent, LEVELS[level], packs=packs)

    runners = {role: {level: runner(role, level) for level in ("no", "all")} for role in graphs}
    for case in cases:
        for call in (each for each in reference.replay(case, seed) if each.role in runners):
            found = _breach(case, call, runners[call.role]["all"], reference)
            if found is None or _breach(case, call, runners[call.role]["no"], reference) is not None:
                continue
            for level in LEVELS:
                worst = _breach(case, call, runner(call.role, level), reference)
                if worst is not None:
                    return Miscompiled(call.role, level, worst)
    return None


def _breach(case: Case, call: Call, runner: Runner, reference: Reference) -> Comparison | None:
    """Return the worst output beyond its tolerance; None if all outputs are within it."""
    tolerance = tolerance_of(reference.manifest.arithmetic)
    found = compare_call(case, "ort", call, runner.run(call.inputs), reference, tolerance)
    return max((each for each in found if not each.passed), key=badness, default=None)
