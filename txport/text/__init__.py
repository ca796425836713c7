"""Conversion between text and token ids with the `tokenizers` library, and of other files to `tokenizer.json`."""
