"""The first place at which a bundle computes what PyTorch does not, and why."""
