"""The README of a bundle: a description, and a program that runs it."""
