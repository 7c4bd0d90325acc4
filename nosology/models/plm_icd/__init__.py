"""PLM-ICD: a pretrained transformer over windows, below one attention query per code."""
