"""A federation between machines: TLS, keys, processes."""
