"""Loading a bundle: a runtime packs its weights while the rest of what a model needs is read.

A runtime spends most of its time outside Python. Meanwhile, another core imports the modules of the API, which is why
functions import them here, reads the tokenizer, and hashes large files. In a process whose address space is limited,
all this comes in turn: a thread that finds no memory may end the process, or never end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport import runtimes
from txport.api.locate import checkpoint_of, find_bundle, is_on_demand
from txport.api.tuned import find as find_tuned
from txport.bundles.bundle import Bundle, steady
from txport.errors import BundleError, UnsupportedError
from txport.system.memory import address_limit
from txport.system.numbers import switch, whole
from txport.system.progress import Progress, logged

if TYPE_CHECKING:
    from txport.api.model import Model
    from txport.runtimes.base import Runtime


@steady
def load(
    name: str | Path,
    *,
    runtime: str | None = None,
    provider: str = "cpu",
    threads: int | None = None,
    workers: int | None = None,
    checkpoint: str | Path | None = None,
    variant: str | None = None,
    trust_code: bool = False,
    single: bool = False,
    tuned: bool = True,
    user_compute_stream: int | None = None,
    progress: Progress = logged,
) -> Model:
    """Load a bundle: a folder written by `export`, or the name of an included checkpoint.

    It can also be a folder of graphs exported by Optimum or the converter of transformers.js
    (docs/foreign-bundles.md); `variant` selects the graphs ("quantized"), by default those without a suffix.

    `threads` is the number of threads per operator, by default one per core. For bulk work, use one of `workers` per
    core: each processes its own batch with one thread. If none of `runtime` (default: ort), `threads` and `workers`
    (default: 1) is given, a bundle runs with what `txport tune` found for it on this machine, unless `tuned` is False.

    There is no fallback to another provider: `UnavailableError` gives the reason. The `torch` runtime needs the
    `checkpoint` of the bundle, unless it is included in txport; with `trust_code` it can be a Python file and the name
    of an adapter, `model.py:NAME`. `single` runs the graph that contains the search. A cuda bundle uses the
    `user_compute_stream`, the address of a CUDA stream (`torch.cuda.Stream().cuda_stream`), otherwise two streams of
    its own, one for the encoder.
    """
    is_placed = any(each is not None for each in (runtime, threads, workers))
    runtime, threads, workers = _placed(runtime, provider, threads, workers)
    if runtime != "torch":
        _require_no_source(runtime, checkpoint, trust_code)
    if is_on_demand(str(name)) or runtime == "torch":  # otherwise the bundle first checks where it can run
        runtimes.require(runtime, provider)
    bundle = find_bundle(str(name), variant=variant, wait=_comes_in_turn(), progress=progress)
    bundle.require_weights()
    is_tuned = switch("tuned", tuned) and provider == "cpu" and not (is_placed or single)
    if (found := find_tuned(bundle.path) if is_tuned else None) is not None:
        progress(f"as `txport tune` found on this machine: {found.describe()}")
        runtime, threads, workers = found.runtime, found.threads, found.workers
    if user_compute_stream is not None and (single or runtime == "torch"):
        raise UnsupportedError("user_compute_stream needs the ort runtime on cuda; it can't be combined with single")
    how: dict[str, Any] = {"provider": provider, "threads": threads}
    start: Callable[[], Runtime]
    if switch("single", single):
        start = partial(runtimes.load_single, runtime, bundle, **how)
    elif runtime == "torch":
        start = partial(_load_torch, bundle, checkpoint, trust_code, how)
    else:
        runtimes.require_for(runtime, bundle, provider)  # imported before a thread that holds Python's lock starts
        how |= {"workers": workers, "user_compute_stream": user_compute_stream}
        start = partial(runtimes.load, runtime, bundle, **how)
    model = _model(bundle, start, workers, f"{runtime} on {provider}")
    model.tuned = found
    return model


def _placed(
    runtime: str | None, provider: str, threads: int | None, workers: int | None
) -> tuple[str, int | None, int]:
    """Return runtime, threads and workers, by default ort and one worker; raise `UnsupportedError` for invalid ones."""
    runtime = "ort" if runtime is None else runtime
    runtimes.require_known(runtime, provider)
    workers = 1 if workers is None else whole("workers", workers, 1)
    runtimes.require_threads("workers", workers)
    runtimes.require_threads("threads", threads)
    return runtime, 1 if threads is None and workers > 1 else threads, workers


def _require_no_source(runtime: str, checkpoint: str | Path | None, trust_code: bool) -> None:
    """Raise `UnsupportedError` for options of the torch runtime."""
    if trust_code:
        raise UnsupportedError(f"trust_code needs the torch runtime; {runtime} does not run user code")
    if checkpoint is not None:
        raise UnsupportedError(f"checkpoint needs the torch runtime; {runtime} runs the bundle without a checkpoint")


def _load_torch(bundle: Bundle, checkpoint: str | Path | None, trust_code: bool, how: Mapping[str, Any]) -> Runtime:
    from txport.api.release import load_source

    source = load_source(bundle, checkpoint_of(bundle) if checkpoint is None else checkpoint, trust_code=trust_code)
    bundle.require_source(source.name, source.sha256)
    bundle.require_model(source.described)
    return runtimes.load_torch(source, **how)


def _model(bundle: Bundle, start: Callable[[], Runtime], workers: int, where: str) -> Model:
    """Start a runtime, and read the rest meanwhile."""
    manifest = bundle.manifest

    def read() -> Callable[[Runtime], Model]:
        from txport.api.model import Model
        from txport.text.load import chat_of, tokenizer_of

        facts, texts = manifest.facts, bundle.texts
        tokenizer = tokenizer_of(texts, bundle.path, facts)
        chat = chat_of(texts, bundle.path, tokenizer) if facts.is_causal else None
        defaults = _defaults_of(bundle)
        return lambda engine: Model(engine, tokenizer, facts, workers, defaults, chat, manifest.not_followed)

    with bundle.verified(), contextlib.ExitStack() as stack:
        if _comes_in_turn():
            engine = start()
            model = read()(engine)
        else:
            reading = stack.enter_context(ThreadPoolExecutor(1)).submit(copy_context().run, read)
            engine = start()
            model = reading.result()(engine)
    made = f"{manifest.architecture} ({manifest.facts.task}), {manifest.target} {manifest.precision}"
    model.described = f"{bundle.path}, {made}, {where}"
    return model


def _comes_in_turn() -> bool:
    return address_limit() is not None


def _defaults_of(bundle: Bundle) -> Mapping[str, Any]:
    """Return the bundle's default options of search or pooling; raise `BundleError` if they are invalid."""
    from txport.search.options import require_defaults

    facts = bundle.manifest.facts
    defaults = bundle.manifest.generation
    try:
        require_defaults(defaults, facts)
    except UnsupportedError as error:
        what = f"the {facts.ability or 'generation'} options of {bundle.path} are not valid"
        raise BundleError(f"{what}: {error}; export it again") from error
    return defaults
