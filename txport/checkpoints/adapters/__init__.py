"""Adapters: descriptions of users' modules that no architecture supports, and the code that runs these modules."""
