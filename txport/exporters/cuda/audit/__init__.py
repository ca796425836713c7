"""Audit of a graph for CUDA without a GPU: nodes without kernels, and values and nodes on the host."""
