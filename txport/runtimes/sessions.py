"""ONNX Runtime's sessions of a bundle, on exactly the execution provider that was asked for."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import onnxruntime as ort

from txport.models.bundle import Bundle
from txport.models.errors import UnavailableError
from txport.runtimes.providers import full_name, provider_options

SPIN = "200"  # microseconds: longer than the search takes between two steps, far shorter than a run

Sessions = dict[str, ort.InferenceSession]


def start_sessions(bundle: Bundle, provider: str, threads: int | None, *, spinning: str = "") -> Sessions:
    """A session for each graph, by role; only the threads of the graph that is `spinning` stay awake between runs."""
    name = full_name(provider)
    return {role: _session(bundle, role, name, threads, spins=role == spinning) for role in bundle.manifest.graphs}


def _session(bundle: Bundle, role: str, provider: str, threads: int | None, spins: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    # The sessions take turns; threads that spin while another session works would starve it.
    options.add_session_config_entry("session.force_spinning_stop", "0" if spins else "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN)
    options.add_session_config_entry("session.x64quantprecision", "1" if may_saturate() else "0")
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


@cache
def may_saturate() -> bool:
    """Whether sums of two 8-bit products may overflow the processor's 16 bits: x86 without, or not known to have, VNNI.

    What is exact there takes 2.4 times as long where nothing would overflow.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and "vnni" not in _flags()


def _flags() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
