"""The README of a bundle: a description, and examples of programs that run it."""
