"""The driver of cuda bundles, over a device: a GPU, or the CPU instead of one."""
