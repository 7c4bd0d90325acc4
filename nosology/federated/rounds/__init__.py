"""The rounds of a federation: sites, server, strategies, checkpoints, simulation."""
