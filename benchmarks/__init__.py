"""Measurements: what txport reaches, on which machine, by which command."""
