"""The serving room."""
