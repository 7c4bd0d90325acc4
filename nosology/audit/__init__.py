"""Audit: what was billed for an encounter against what its documents support."""
