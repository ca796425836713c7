"""Exports of models at their published sizes: memory and time, by `python -m tests.sizes`."""
