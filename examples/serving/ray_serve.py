"""The service of `txport serve` on Ray Serve: replicas of the same ASGI application, as many as the load needs.

serve run examples.serving.ray_serve:service words=BUNDLE embed=BUNDLE
"""

from __future__ import annotations

from ray import serve

import txport
from txport.serving import app

CORES = 2  # of a replica
SLOTS = 32  # requests that run together in a replica


class Replica:
    """One process with all models. Ray replaces a replica that is not healthy."""

    def check_health(self) -> None:
        """Raise `RuntimeError` if the engine of a model has failed."""
        if not self.app.models.is_ready:  # type: ignore[attr-defined] # `serve.ingress` adds `app`
            raise RuntimeError("the engine of a model has failed")


def service(bundles: dict[str, str]) -> serve.Application:
    """Return the application of bundles by name; a replica loads them, and shares nothing with others.

    The engine of a replica makes the batches, so a replica gets many requests at once: about as many as an engine has
    places for (`max_ongoing_requests`), and another replica starts when more than `SLOTS` of them run or wait.
    """

    def build() -> object:
        return app({name: txport.load(path, threads=CORES) for name, path in bundles.items()}, slots=SLOTS)

    deployment = serve.deployment(
        name="txport",
        ray_actor_options={"num_cpus": CORES},
        max_ongoing_requests=1000,
        autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": SLOTS},
        graceful_shutdown_timeout_s=60,
    )
    return deployment(serve.ingress(build)(Replica)).bind()
