"""Drivers of graphs that others exported, over the seam."""
