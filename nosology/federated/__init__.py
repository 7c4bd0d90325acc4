"""Federated training of heads: rounds on Flower, privacy, deployment between hospitals."""
