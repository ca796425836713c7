"""The targets of exports, one record each. What differs between targets stands here: no code compares their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txport.bundles import ports
from txport.bundles.device_ports import CUDA
from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts, Task

FEW_BITS = ("int8", "int4")  # precisions of quantised weights


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a bundle is made for.

    `contracts`: the ports of its graphs, by task. `precisions`: those of exports, the default first. `kind`, `kinds`:
    words for a bundle and for several. `is_standard`: its operators are those of ONNX alone. `on_gpu`: the state of a
    search stays on a GPU. `is_flat`: activations have no dim of rows. `on_request`: a step gives its best tokens and
    its attention on request. `chooses`: an export chooses the storage forms of quantised weights, and the kernels by
    the number of rows. `calibrates`: precisions whose weights are rounded by texts. `multiplies_in`: precision of
    products with quantised weights. `provider`: the only one on which ort runs it; `otherwise`: what an error advises
    for others. `least_runtime`: the oldest version of ONNX Runtime for it.
    """

    name: str
    kind: str
    kinds: str
    summary: str = ""
    contracts: Mapping[Task, ports.Contract] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    is_standard: bool = False
    on_gpu: bool = False
    is_flat: bool = False
    chooses: bool = False
    on_request: bool = False
    calibrates: tuple[str, ...] = ()
    multiplies_in: str = ""
    provider: str = ""
    otherwise: str = ""
    least_runtime: str = ""

    def quantises(self, precision: str) -> bool:
        """Return whether bundles of this precision have quantised weights."""
        return precision in self.precisions and precision in FEW_BITS

    def has_choice(self, precision: str) -> bool:
        """Return whether an export of this precision chooses forms and kernels of quantised weights."""
        return self.chooses and self.quantises(precision)

    def arithmetic(self, precision: str) -> str:
        """Return the precision in which bundles of this precision compute."""
        return self.multiplies_in if self.multiplies_in and self.quantises(precision) else precision

    def offered(self, precision: str | None) -> str:
        """Return the precision of an export, None for the default; raise `UnsupportedError` for an unsupported one."""
        precision = next(iter(self.precisions), None) if precision is None else precision
        if precision not in self.precisions:
            offers = "; ".join(f"{name}: {', '.join(each.precisions)}" for name, each in TARGETS.items())
            what = f"target {self.name} does not support precision {quoted(precision)}"
            raise UnsupportedError(f"{what}; supported: {offers}")
        return precision

    def require_single(self, facts: Facts) -> None:
        """Raise `UnsupportedError` unless bundles of this target can contain a single graph for this model."""
        if not self.is_standard:
            why = f"single needs standard ONNX operators, and the {self.name} target uses others"
            raise UnsupportedError(f"{why}; export it with target='portable'")
        if not facts.generates:
            what = "its model.onnx is already a single graph; remove single"
            raise UnsupportedError(f"single needs a generating model; this model is encoder-only, and {what}")


PORTABLE = Target(
    name="portable",
    kind="a bundle of the portable target",
    kinds="bundles of the portable target",
    summary="portable: standard ONNX operators",
    contracts=ports.PORTABLE,
    precisions=("fp32", "fp16"),
    is_standard=True,
)
CPU = Target(
    name="cpu",
    kind="a bundle of the cpu target",
    kinds="bundles of the cpu target",
    summary="cpu: ONNX Runtime's fused operators",
    contracts=ports.CPU,
    precisions=("fp32", "int8", "int4"),
    is_flat=True,
    chooses=True,
    on_request=True,
    calibrates=("int4",),
    provider="cpu",
    otherwise="export it with target='portable' for any other",
    least_runtime="1.24.1",  # the oldest version that txport supports
)
ON_CUDA = Target(
    name="cuda",
    kind="a bundle of the cuda target",
    kinds="bundles of the cuda target",
    summary="cuda: operators of ONNX Runtime on a GPU",
    contracts=CUDA,
    precisions=("fp16", "bf16", "fp32", "int8", "int4"),
    on_gpu=True,
    multiplies_in="fp16",  # its kernels of quantised weights
    provider="cuda",
    otherwise="give provider='cuda', or runtime='cuda-stand-in' to compute it on the CPU, slowly and in fp32",
    least_runtime="1.31.1",
)
FOREIGN = Target(name="foreign", kind="a folder that others exported", kinds="folders that others exported")
TARGETS = {each.name: each for each in (PORTABLE, CPU, ON_CUDA)}  # what `export` makes


def target_of(name: str) -> Target:
    """Return the record of a target; raise `UnsupportedError` for an unknown name."""
    if name not in (*TARGETS, FOREIGN.name):  # a tuple: a wrong value may have no hash
        raise UnsupportedError(f"unknown target {quoted(name)}; supported: {', '.join(TARGETS)}")
    return TARGETS.get(name, FOREIGN)
