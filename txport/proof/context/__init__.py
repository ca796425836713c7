"""Comparison of a bundle with PyTorch at the end of a long context, part by part."""
