"""Benchmarks of txport; each module states its command."""
