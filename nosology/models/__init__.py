"""Coding models: one package per model, the registry, training and bundles."""
