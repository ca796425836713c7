"""Text <-> token ids, on the `tokenizers` library, and what makes a `tokenizer.json` of the files of others."""
