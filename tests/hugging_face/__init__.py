"""Search held against Hugging Face's `generate`, in an environment of its own: `make test` runs it."""
