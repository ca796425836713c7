"""The version of txport."""

__version__ = "0.1.0"
