"""The recipe of `g2p-en`, English spelling to pronunciation."""
