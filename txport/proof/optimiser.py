"""Whether ONNX Runtime's own optimiser makes a sound graph wrong, and from which of its levels on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
import onnxruntime as ort

from txport.models.bundle import Bundle
from txport.proof.cases import Case
from txport.proof.measures import Comparison, compare
from txport.proof.taps import Runner
from txport.proof.tolerances import tolerance_of
from txport.proof.walks import Call, Reference

LEVELS = {
    "no": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@dataclass(frozen=True)
class Miscompiled:
    """A graph that is right as it stands and wrong once it is optimised."""

    role: str
    level: str
    worst: Comparison


def miscompiled(
    bundle: Bundle, roles: Iterable[str], reference: Reference, cases: Iterable[Case], seed: int
) -> Miscompiled | None:
    """The first output that differs from PyTorch with every optimisation, but not with none."""
    runners = {role: {level: _runner(bundle, role, level) for level in ("no", "all")} for role in roles}
    for case in cases:
        for call in reference.walk(case.sources, case.steps, seed):
            found = _breach(case.name, call, runners[call.role]["all"], bundle)
            if found is None or _breach(case.name, call, runners[call.role]["no"], bundle) is not None:
                continue
            for level in LEVELS:
                worst = _breach(case.name, call, _runner(bundle, call.role, level), bundle)
                if worst is not None:
                    return Miscompiled(call.role, level, worst)
    return None


def _runner(bundle: Bundle, role: str, level: str) -> Runner:
    file = bundle.file(role)
    return Runner(ir.load(file), file.parent, LEVELS[level])


def _breach(case: str, call: Call, runner: Runner, bundle: Bundle) -> Comparison | None:
    """The output that differs most, if any differs too much."""
    tolerance = tolerance_of(bundle.manifest.precision)
    actual, rms = runner.run(call.inputs), tolerance.allowed_rms
    found = [
        compare(case, "ort", call.step, name, values, actual[name], tolerance.allowed(values), rms=rms)
        for name, values in call.expected.items()
    ]
    return next((each for each in found if not each.passed), None)
