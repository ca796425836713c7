"""Drivers of graphs that were exported by other tools."""
