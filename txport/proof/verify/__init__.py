"""Verify that a bundle computes the same where it is deployed as at export, without torch or onnx."""
