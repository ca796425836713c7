"""How targets are found, over the seam of a runtime. NumPy only; imports of ours: models and `runtimes.base`."""
