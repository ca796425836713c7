"""What `benchmarks.peers.worker` runs on a GPU, beside the engine of CTranslate2 there."""
