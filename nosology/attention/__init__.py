"""Attention: from token states to one vector per label. All modules respect the lengths of notes."""
