"""Models: configs, facts, weights, tokenizers and PyTorch modules. Imports only `errors` and `system` of txport."""
