"""What `import txport` gives: models that run, exports, and what both are made of."""
