"""Whether a graph runs on CUDA alone, told without a GPU: which nodes have kernels, and what lies on the host."""
