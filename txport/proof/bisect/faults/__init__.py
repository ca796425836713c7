"""Fault models: each computes what a part of a graph would give under one fault."""
