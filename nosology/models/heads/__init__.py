"""Heads: a classifier on frozen embeddings of a note."""
