"""The HTTP service: an ASGI application on Starlette, and its server."""
