"""HMHAN: hierarchical attention over a pretrained encoder, for radiology reports."""
