"""Load bundles on ONNX Runtime, on exactly the requested execution provider."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import ForeignManifest
from txport.errors import UnsupportedError
from txport.runtimes.base import GraphPorts, GraphRuntime, running
from txport.runtimes.foreign.lengths import foreign_runtime
from txport.runtimes.inputs import PROMPT_PART
from txport.runtimes.ort.fused import FusedRuntime
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.options import NVIDIA
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.parts import MOST_HELD_TWICE, Parts
from txport.runtimes.ort.placement import placement
from txport.runtimes.ort.providers import device_of, full_name, require_provider
from txport.runtimes.ort.sessions import Sessions, session_ports, start_sessions
from txport.runtimes.portable import PortableRuntime
from txport.runtimes.single import SingleRuntime
from txport.system.arrays import Array
from txport.system.cores import usable_cores
from txport.targets.ports import GENERATE, STEP

OrtValue = Any  # onnxruntime has no types


class OrtEngine:
    """`Engine` over the sessions of a bundle; tensors stay on the provider's device."""

    def __init__(self, sessions: Sessions, provider: str = "cpu") -> None:
        name = full_name(provider)
        self._device = device_of(name)
        self._explain = partial(explain, provider=name) if name in NVIDIA else None
        self._sessions = sessions

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return session_ports(self._sessions[role])

    def run(
        self, role: str, inputs: dict[str, OrtValue], outputs: list[str], *, last: bool = False
    ) -> dict[str, OrtValue]:
        """See `Engine.run`."""
        session = self._sessions[role]
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, self._device)
        with running(role, "ONNX Runtime", self._explain):
            session.run_with_iobinding(binding)
        return dict(zip(outputs, binding.get_outputs(), strict=True))

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return placement(self._sessions)

    def from_numpy(self, array: Array) -> OrtValue:
        """See `Engine.from_numpy`; on the CPU the memory is shared, not copied."""
        try:
            return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), self._device)
        except Exception as error:  # its errors have no common base class
            self._tell(error)
            raise

    def to_numpy(self, tensor: OrtValue) -> Array:
        """See `Engine.to_numpy`."""
        try:
            return tensor.numpy()  # type: ignore[no-any-return]
        except Exception as error:  # errors of a kernel may be raised when its results are fetched
            self._tell(error)
            raise

    def _tell(self, error: Exception) -> None:
        """Raise our error with a fix if the GPU caused this one; else return."""
        if self._explain is not None and (known := self._explain(error)):
            raise known from error


def require(provider: str) -> None:
    """See `runtimes.require`."""
    require_provider(provider)


def load(
    bundle: Bundle, *, provider: str = "cpu", threads: int | None = None, user_compute_stream: int | None = None
) -> GraphRuntime:
    """Start a bundle on ONNX Runtime; raise `UnavailableError` if the provider can't work here.

    `user_compute_stream` is the address of the CUDA stream on which to run graphs of the cuda target; raise
    `UnsupportedError` if it is given for another target.
    """
    made_for = bundle.manifest.made_for
    if made_for.on_gpu:
        return _on_gpu(bundle, provider, threads, user_compute_stream)
    if user_compute_stream is not None:
        what = f"user_compute_stream is for bundles of the cuda target, and {bundle.path} is"
        raise UnsupportedError(f"{what} {made_for.kind}; export it with target='cuda'")
    if isinstance(bundle.manifest, ForeignManifest):
        return foreign_runtime(OrtEngine(start_sessions(bundle, provider, threads), provider), bundle.manifest)
    if made_for.is_standard:
        engine = OrtEngine(start_sessions(bundle, provider, threads), provider)
        return PortableRuntime(engine, bundle.manifest, prompt_part=PROMPT_PART)
    return FusedRuntime(bundle, start_sessions(bundle, provider, threads, spinning=STEP), _parts(bundle, threads))


def _parts(bundle: Bundle, threads: int | None) -> Parts | None:
    """Return what computes batches of a cpu bundle in parts; None where a part would change the results of others."""
    manifest = bundle.manifest
    threads = threads or usable_cores()
    if manifest.facts.generates or manifest.rows is not None or threads == 1 or bundle.size > MOST_HELD_TWICE:
        return None
    return Parts(lambda: start_sessions(bundle, "cpu", 1), threads)


def _on_gpu(bundle: Bundle, provider: str, threads: int | None, stream: int | None) -> GraphRuntime:
    """Start each session on the stream of its queue, or all on the user's stream; only the step graph is captured."""
    from txport.runtimes.ort.cuda.device import queue_of  # many modules, which no other target needs
    from txport.runtimes.ort.cuda.driver import CudaRuntime
    from txport.runtimes.ort.cuda.gpu import CudaDevice
    from txport.runtimes.ort.cuda.graphs import Graphs

    device = CudaDevice(stream)

    def options_of(role: str) -> dict[str, str]:
        on_stream = {"user_compute_stream": str(device.streams[queue_of(role)])}
        return {**on_stream, "enable_cuda_graph": "1"} if role == STEP else on_stream

    sessions = start_sessions(bundle, provider, threads, options_of=options_of)
    graphs = Graphs(bundle.manifest.driven, sessions, lambda role: session_ports(sessions[role]))
    return CudaRuntime(bundle.manifest.facts, graphs, device)


def load_single(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> SingleRuntime[OrtValue]:
    """Start the single graph of a bundle, which contains the search."""
    sessions = start_sessions(bundle, provider, threads, roles=[GENERATE])
    return SingleRuntime(OrtEngine(sessions, provider), bundle.manifest)
