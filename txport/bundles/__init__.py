"""What a bundle is: the manifest, the ports of its graphs, and its files, each held against its hash."""
