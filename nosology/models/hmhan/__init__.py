"""HMHAN (hierarchical multi-head attention network): codes for radiology reports, on top of a pretrained encoder."""
