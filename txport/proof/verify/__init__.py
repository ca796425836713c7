"""Whether a bundle computes, where it is deployed, what it computed at export; needs neither torch nor onnx."""
