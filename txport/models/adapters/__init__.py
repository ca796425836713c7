"""Modules of the user's own that no architecture expresses: what their adapters are, and how they run."""
