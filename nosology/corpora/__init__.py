"""Corpora: dataset readers, the corpus folder, filters, splits, the leakage audit and the simulated hospital."""
