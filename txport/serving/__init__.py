"""Serving: the live engine, and the HTTP service on it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from txport.serving.service.asgi import app as app

__all__ = ["app"]


def __getattr__(name: str) -> object:
    """Import the service at first use, since it needs packages that the engine does not."""
    if name != "app":
        raise AttributeError(f"module 'txport.serving' has no attribute {name!r}")
    from txport.system.packages import needed

    with needed("txport[serve]", "a service"):
        from txport.serving.service.asgi import app

    return app
