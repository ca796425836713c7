"""ONNX Runtime, on exactly the execution provider that was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from txport.models.bundle import Bundle
from txport.models.errors import UnavailableError
from txport.runtimes.base import GraphRuntime
from txport.runtimes.portable import PortableRuntime
from txport.runtimes.providers import device_of, full_name, provider_options, require_provider

OrtValue = Any  # onnxruntime has no types


class OrtEngine:
    """The sessions of a bundle, with tensors that stay on the provider's device."""

    def __init__(self, bundle: Bundle, provider: str, threads: int | None) -> None:
        name = full_name(provider)
        self._device = device_of(name)
        self._sessions = {role: _session(bundle, role, name, threads) for role in bundle.manifest.graphs}

    def run(self, role: str, inputs: dict[str, OrtValue], outputs: list[str]) -> dict[str, OrtValue]:
        """See `Engine.run`."""
        session = self._sessions[role]
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, self._device)
        session.run_with_iobinding(binding)
        return dict(zip(outputs, binding.get_outputs(), strict=True))

    def from_numpy(self, array: NDArray[Any]) -> OrtValue:
        """See `Engine.from_numpy`; on the CPU the memory is shared, not copied."""
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self._device)

    def to_numpy(self, tensor: OrtValue) -> NDArray[Any]:
        """See `Engine.to_numpy`."""
        return tensor.numpy()  # type: ignore[no-any-return]


def _session(bundle: Bundle, role: str, provider: str, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    # The sessions take turns; threads that spin while another session works would starve it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    providers = [(provider, provider_options(provider)), "CPUExecutionProvider"]
    if provider == "CPUExecutionProvider":
        providers = providers[1:]
    file = bundle.file(role)
    try:
        session = ort.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # its errors share no other base
        mend = "update it, or export again with a lower --opset"
        raise UnavailableError(f"ONNX Runtime {ort.__version__} can't load {file}: {error}; {mend}") from error
    if session.get_providers()[0] != provider:  # ONNX Runtime only logs that it fell back
        raise UnavailableError(f"{provider} did not start for {file}; `txport doctor` says what is missing")
    return session


def require(provider: str) -> None:
    """See `runtimes.require`."""
    require_provider(provider)


def load(bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a bundle on ONNX Runtime; `UnavailableError` if the provider can't work here."""
    return PortableRuntime(OrtEngine(bundle, provider, threads), bundle.manifest)
