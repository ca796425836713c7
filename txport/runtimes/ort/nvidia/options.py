"""Options of NVIDIA's providers, and the cache folders of TensorRT's engines."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from txport.bundles.bundle import Bundle
from txport.runtimes import PROVIDERS
from txport.runtimes.ort.nvidia.driver import Device
from txport.system.paths import told

CUDA, TENSORRT = PROVIDERS["cuda"], PROVIDERS["tensorrt"]
NVIDIA = (CUDA, TENSORRT)
FIRST = "0"  # the first GPU that the process sees: CUDA_VISIBLE_DEVICES chooses
HALF = {"fp16": "trt_fp16_enable", "bf16": "trt_bf16_enable"}
ENGINES = "engines"

# fp32 without TF32. Kernels are chosen by heuristic rules, not by timing, so that results are reproducible.
CUDA_OPTIONS = {
    "device_id": FIRST,
    "use_tf32": "0",
    "cudnn_conv_algo_search": "HEURISTIC",
    "tunable_op_enable": "0",
    "tunable_op_tuning_enable": "0",
}


def cuda_options() -> dict[str, str]:
    """Return the options of ONNX Runtime's CUDA provider."""
    return dict(CUDA_OPTIONS)


def tensorrt_options(precision: str, engines: Path, timings: Path) -> dict[str, str]:
    """Return TensorRT's options: half precision only for half-precision bundles; folders of engines and timings."""
    options = {
        "device_id": FIRST,
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(timings),
        "trt_int8_enable": "False",
        **{name: "True" if precision == half else "False" for half, name in HALF.items()},
    }
    if precision == "fp16":
        options["trt_layer_norm_fp32_fallback"] = "True"  # sums of squares overflow fp16
    return options


def bundle_options(
    provider: str, bundle: Bundle, role: str, device: Device | None, runtime: str, cache: Path | None = None
) -> dict[str, str]:
    """Return a provider's options for the graph of a role; create the folders of TensorRT's caches.

    `runtime` is the version of the software that builds the engines. Raise `OutputError` if the user's cache can't be
    written.
    """
    if provider == CUDA:
        return cuda_options()
    cache = cache or _cache()
    engines = _folder(cache / engine_key(provider, bundle, device, runtime) / role)
    timings = _folder(cache / f"timings-{_name(device)}-{_word(runtime)}")
    return tensorrt_options(bundle.manifest.precision, engines, timings)


def engine_key(provider: str, bundle: Bundle, device: Device | None, runtime: str) -> str:
    """Return the name of the folder for the engines of one bundle, kind of GPU and runtime version."""
    files = {name: entry["sha256"] for name, entry in sorted(bundle.manifest.files.items())}
    digest = hashlib.sha256(json.dumps([files, bundle.manifest.precision]).encode()).hexdigest()[:16]
    short = next(name for name, full in PROVIDERS.items() if full == provider)
    return f"{short}-{digest}-{_name(device)}-{_word(runtime)}"


def _name(device: Device | None) -> str:
    if device is None:
        return "gpu"
    major, minor = device.capability
    return f"{_word(device.name)}-{major}.{minor}"


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") or "unknown"


def _cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("txport") / ENGINES


def _folder(path: Path) -> Path:
    """Create a folder, and missing parents, that only the user can access: engines are code."""
    with told(path, "choose another place for caches by XDG_CACHE_HOME, or use provider='cuda'"):
        for place in [*reversed(path.parents), path]:
            if not place.is_dir():
                place.mkdir(exist_ok=True, mode=0o700)
    return path
