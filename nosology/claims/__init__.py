"""Checks of a set of assigned codes, and its payment groups (MS-DRG, HCC)."""
