"""What a bundle is made for: the record that each target fills. No code compares the names of targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txport.errors import UnsupportedError, quoted
from txport.models.facts import Facts, Task
from txport.targets.ports import Contract

FEW_BITS = ("int8", "int4")  # precisions of quantised weights


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a bundle is made for.

    `contracts`: the ports of its graphs, by task. `precisions`: those of exports, the default first. `exporter`: what
    makes the graphs, and `replays`: PyTorch's calls of them by task, each as "module:name". `is_standard`: its
    operators are those of ONNX alone. `on_gpu`: the state of a search stays on a GPU. `is_flat`: activations have no
    dim of rows. `on_request`: a step gives its best tokens and its attention on request. `chooses`: an export chooses
    the storage forms of quantised weights, and the kernels by the number of rows. `calibrates`: precisions whose
    weights are rounded by texts. `stores`: the kind of form of all quantised weights, where it does not choose.
    `multiplies_in`: precision of products with quantised weights. `provider`: the only one on which ort runs it;
    `otherwise`: what an error advises for others. `least_runtime`: the oldest version of ONNX Runtime for it.
    """

    name: str
    summary: str = ""
    contracts: Mapping[Task, Contract] = field(default_factory=dict)
    precisions: tuple[str, ...] = ()
    exporter: str = ""
    replays: str = ""
    is_standard: bool = False
    on_gpu: bool = False
    is_flat: bool = False
    chooses: bool = False
    on_request: bool = False
    calibrates: tuple[str, ...] = ()
    stores: str = ""
    multiplies_in: str = ""
    provider: str = ""
    otherwise: str = ""
    least_runtime: str = ""

    @property
    def kind(self) -> str:
        """Words for a bundle of this target."""
        return f"a bundle of the {self.name} target" if self.contracts else "a folder that others exported"

    @property
    def kinds(self) -> str:
        """Words for several bundles of this target."""
        return f"bundles of the {self.name} target" if self.contracts else "folders that others exported"

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
            from txport.targets import TARGETS

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
