"""The comparison of a bundle with PyTorch: weights, graphs, whole targets, tokens, and the tolerance of each."""
