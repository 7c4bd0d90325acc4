"""Rounds of a federation: site, server, strategies, on any Flower grid."""
