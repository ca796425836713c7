"""Proof that a bundle computes what PyTorch computes."""
