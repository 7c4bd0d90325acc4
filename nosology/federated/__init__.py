"""Hospitals that train one coder while no note leaves home."""
