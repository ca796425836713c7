"""Bisection of a bundle: the first part whose result differs from PyTorch, and the cause."""
