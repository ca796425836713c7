"""The README of a bundle: what it is, and how a program in another language runs it."""
