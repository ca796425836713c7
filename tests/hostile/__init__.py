"""Hostile input: bundles, checkpoints, tokenizers, goldens, reports and texts that nobody wrote in good faith."""
