"""`txport serve`: the HTTP service."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from txport.cli import completion
from txport.cli.guard import echo
from txport.cli.options import fit_threads, provider_option, section, threads_option, tuned_option
from txport.cli.outputs import INPUT, command
from txport.errors import UnsupportedError
from txport.system.cores import usable_cores
from txport.system.packages import needed

LOCAL = ("127.0.0.1", "::1", "localhost")
EXAMPLES = """\b
Examples:
  txport serve g2p-en
  txport serve chat=bundles/smollm embed=bundles/minilm --host 0.0.0.0 --api-key-file keys.txt
"""


@command(epilog=EXAMPLES)
@click.argument("bundles", nargs=-1, required=True, metavar="[NAME=]BUNDLE...", shell_complete=completion.models)
@section(
    "Network",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: a free one."),
    click.option(
        "--api-key-file",
        type=INPUT,
        help="File of API keys, one a line: requests need one of them. Adds /admin/reload.",
    ),
    click.option(
        "--drain",
        type=click.IntRange(0),
        default=60,
        show_default=True,
        help="Seconds after SIGTERM in which running requests may end.",
    ),
)
@section(
    "Limits",
    click.option("--slots", type=click.IntRange(1), default=32, show_default=True, help="Requests that run together."),
    click.option(
        "--queue",
        type=click.IntRange(0),
        default=1024,
        show_default=True,
        help="Requests that may wait, of each model; others get 429.",
    ),
    click.option(
        "--budget",
        type=click.IntRange(1),
        default=512,
        show_default=True,
        help="Source tokens that enter before each step, so that long prompts do not hold up other requests.",
    ),
    click.option(
        "--max-body", type=click.IntRange(1), default=4, show_default=True, help="Largest body in MB; others get 413."
    ),
    click.option("--max-audio", type=click.IntRange(1), default=100, show_default=True, help="Like that, of audio."),
    click.option(
        "--body-seconds",
        type=click.FloatRange(0, min_open=True),
        default=30.0,
        show_default=True,
        help="Seconds in which a body must arrive; others get 408.",
    ),
)
@section(
    "Where it runs",
    provider_option,
    click.option(
        "--workers",
        type=click.IntRange(1),
        callback=fit_threads,
        default=1,
        show_default=True,
        help="Processes that share the port; each has slots, queues and its share of the cores as --threads.",
    ),
    threads_option,
    tuned_option,
)
def serve(
    bundles: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    drain: int,
    slots: int,
    queue: int,
    budget: int,
    max_body: int,
    max_audio: int,
    body_seconds: float,
    provider: str,
    workers: int,
    threads: int | None,
    no_tuned: bool,
) -> None:
    """Serve each BUNDLE over HTTP, under the NAME or the name of its folder (docs/service.md).

    OpenAI's completions, chats, embeddings and transcriptions; /v1/rerank, /translate, /answer, the Open Inference
    Protocol for encoders, metrics for Prometheus, and a page for people at /. SIGTERM ends it when its requests have
    ended; SIGHUP loads the bundles again, and a new one replaces the old one if `txport verify` passes on it.
    """
    with needed("txport[serve]", "a service"):
        from txport.serving.service.asgi import app
        from txport.serving.service.guards import read_keys
        from txport.serving.service.models import Source
        from txport.serving.service.server import serve as run
        from txport.serving.service.workers import supervise
    if workers > 1 and threads is None:
        threads = max(1, usable_cores() // workers)
    models = {name: Source(path, provider, threads, not no_tuned) for name, path in named(bundles).items()}
    keys = read_keys(api_key_file) if api_key_file is not None else ()
    if host not in LOCAL and not keys:
        echo(f"txport: whoever reaches {host} can use this service; --api-key-file restricts it", err=True)
    limits: dict[str, Any] = {"max_body": max_body << 20, "max_audio": max_audio << 20, "body_seconds": body_seconds}
    make = partial(app, models, api_keys=keys, slots=slots, queue=queue, budget=budget, **limits)
    served = ", ".join(models)
    place: dict[str, Any] = {"host": host, "port": port, "drain": drain}
    place["told"] = lambda url: echo(f"serving {served} at {url}", err=True)
    if workers > 1:
        supervise(make, workers, **place)
    else:
        run(make(), **place)


def named(bundles: tuple[str, ...]) -> dict[str, str]:
    """Return bundles by name: NAME=BUNDLE, or else the name of the folder; raise `UnsupportedError` for equal names."""
    found: dict[str, str] = {}
    for each in bundles:
        name, mark, path = each.partition("=")
        if not mark or Path(each).exists():
            path = each
            name = Path(each).resolve().name if Path(each).exists() else each
        if not name or not path or name in found:
            what = "each model needs a name of its own" if path and name else "a model is [NAME=]BUNDLE"
            raise UnsupportedError(f"{what}, got {each!r}; give NAME=BUNDLE")
        found[name] = path
    return found
