"""The comparison of a bundle with PyTorch: weights, graphs, whole targets, tokens, and how far each may be off."""
