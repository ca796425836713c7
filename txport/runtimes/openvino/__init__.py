"""Run portable bundles on OpenVINO's CPU plugin."""
