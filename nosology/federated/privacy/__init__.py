"""Privacy of a federation: differential privacy, secure aggregation, membership inference."""
