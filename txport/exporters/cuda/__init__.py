"""The cuda target: operators that have a kernel on the device, caches written in place, nothing that asks the host."""
