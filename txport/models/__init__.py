"""What a model is: its configuration, weights, tokenizer, ports and bundle. Imports nothing else of ours."""
