"""The engines that `benchmarks.peers.worker` runs on a GPU; that of CTranslate2 is in `benchmarks.peers.engines`."""
