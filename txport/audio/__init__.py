"""Speech as a model's input: facts about features and tokens, audio files, and log-mel spectrograms."""
