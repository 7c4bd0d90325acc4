"""Deployment of a federation between machines: TLS, keys, processes."""
