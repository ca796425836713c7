"""Proof and figures of quantised bundles: the kernels' roundings, each product by itself, and what few bits cost."""
