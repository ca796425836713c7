"""Programs that run bundles without txport, or with its package for JavaScript: `make examples` runs them all."""
