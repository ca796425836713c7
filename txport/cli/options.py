"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click
from click.core import ParameterSource

from txport.cli.completion import folders, models, providers
from txport.cli.guard import prints_aside
from txport.runtimes import require_threads

SECTION = "section"  # attribute of an option: the title under which the help lists it
F = TypeVar("F", bound=Callable[..., object])


def section(title: str, *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options, which the help of the command lists under a title."""

    def add(command: F) -> F:
        before = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        added: list[click.Parameter] = command.__click_params__[before:]  # type: ignore[attr-defined]
        for parameter in added:
            parameter.__dict__.setdefault(SECTION, title)
        return command

    return add


def provider_option(command: F) -> F:
    """Add `--provider`, the execution provider; there is no fallback."""
    text = "Execution provider: cpu, cuda, tensorrt, or any that ONNX Runtime knows. No fallback."
    return click.option("--provider", default="cpu", show_default=True, shell_complete=providers, help=text)(command)


def checkpoint_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds `--checkpoint`: the checkpoint of a bundle, if its name is not enough to find it."""
    return click.option("--checkpoint", shell_complete=models, help=text)


def lora_option(of: str) -> Callable[[F], F]:
    """Return a decorator that adds `--lora`, the LoRAs that are merged with the checkpoint `of`."""
    text = f"Merge this LoRA of PEFT, a folder or a name on the hub, with {of}; docs/lora.md.  [repeatable]"
    return click.option("--lora", "loras", multiple=True, metavar="FOLDER[=WEIGHT]", shell_complete=folders, help=text)


def max_loss_option(beyond: str = "exit 1") -> Callable[[F], F]:
    """Return a decorator that adds `--max-loss`; `beyond`: what is done if the loss is larger."""
    text = (
        f"int8 and int4: {beyond} if few bits cost more: the fraction of tokens or labels that are not those of fp32,"
        " or 1 - cosine of vectors."
    )
    return click.option("--max-loss", type=click.FloatRange(0, 1), help=text)


def trust_option(command: F) -> F:
    """Add `--trust-code`, which allows user code to run; its prints go to standard error."""
    text = "Allow running Python code that is given as model.py:NAME (docs/adapters.md)."
    return click.option("--trust-code", is_flag=True, callback=_trust, help=text)(command)


def _trust(context: click.Context, _: click.Parameter, is_trusted: bool) -> bool:
    if is_trusted:
        context.with_resource(prints_aside())
    return is_trusted


def threads_option(command: F) -> F:
    """Add `--threads`, the number of threads per operator."""
    text = "Number of threads per operator.  [default: all cores]"
    return click.option("--threads", type=click.IntRange(1), callback=fit_threads, help=text)(command)


def tuned_option(command: F) -> F:
    """Add `--no-tuned`, which ignores what `txport tune` found."""
    text = "Ignore what `txport tune` found for the bundle on this machine."
    return click.option("--no-tuned", is_flag=True, help=text)(command)


def workers_option(command: F) -> F:
    """Add `--workers`, the number of batches that run in parallel."""
    text = "Batches that run in parallel; with several, each uses one thread unless --threads is given."
    kind = click.IntRange(1)
    return click.option("--workers", type=kind, callback=fit_threads, default=1, show_default=True, help=text)(command)


def batch_options(command: F) -> F:
    """Add `--batch-size`, `--batch-tokens` and `--continuous`."""
    slots = "Continuous batching: new texts take the slots of finished ones (cpu and cuda bundles)."
    tokens = "Maximum source tokens per batch, padding included."
    command = click.option("--continuous", is_flag=True, help=slots)(command)
    command = click.option("--batch-tokens", type=click.IntRange(1), help=tokens)(command)
    size = "Batch size, in texts."
    return click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help=size)(command)


def fit_threads(context: click.Context, option: click.Parameter, count: int | None) -> int | None:
    """Return the number of threads or workers; raise `UnsupportedError` for more than this machine can use."""
    require_threads(option.opts[0], count)
    return count


def variant_option(command: F) -> F:
    """Add `--variant`, which selects graphs of a folder exported by other tools."""
    text = "Variant of the graphs (quantized, fp16, ...) in a folder of other tools.  [default: no suffix]"
    return click.option("--variant", metavar="NAME", help=text)(command)


def unknown_option(command: F) -> F:
    """Add `--unknown`, the handling of text outside the vocabulary."""
    text = (
        "Text outside the vocabulary: token: use the unknown token; error: fail; skip: remove it; auto: token, or "
        "error for character-level tokenizers."
    )
    return click.option(
        "--unknown", type=click.Choice(["auto", "token", "error", "skip"]), default="auto", show_default=True, help=text
    )(command)


def is_given(name: str) -> bool:
    """Whether an option was given, whatever its value."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
