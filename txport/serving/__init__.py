"""Serving: a live engine, which takes requests at any time."""
