"""cuda bundles on an NVIDIA GPU: that they compute what PyTorch computes, and how fast, beside their peers.

Each side works in a process of its own: PyTorch, CTranslate2 and ONNX Runtime bring CUDA's libraries in versions of
their own, a CUDA graph can't be captured while another thread allocates, and a peer that dies takes only its line
along. The processes take turns, round by round, so that clocks and heat are the same for all. An idle process asks
nothing of the GPU but its memory.
"""
