"""The cuda target: operators with a kernel on the device, caches written in place, no work on the host."""
