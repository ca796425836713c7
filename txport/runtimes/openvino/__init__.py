"""OpenVINO: portable bundles on Intel's processors."""
