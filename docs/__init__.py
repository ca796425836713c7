"""Documentation that is generated."""
