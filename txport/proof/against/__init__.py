"""Comparison of an imported model with its original: the position of the first difference, and its cause."""
