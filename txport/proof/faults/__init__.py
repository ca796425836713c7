"""Fault models: each computes the result of a part of a graph under one fault."""
