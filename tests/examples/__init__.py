"""The examples, as `make examples` runs them."""
