"""Speech as a model's input: what is true of its features and its tokens, audio files, and log-mel spectrograms."""
