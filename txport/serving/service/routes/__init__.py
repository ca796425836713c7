"""Endpoints of the service, one module for each kind of model, and those that tell of the service itself."""
