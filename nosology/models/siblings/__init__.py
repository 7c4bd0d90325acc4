"""The choice between sibling codes: codes of one category, or of one parent."""
