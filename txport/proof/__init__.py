"""Comparison of bundles with PyTorch: parity, verification, bisection, reports."""
