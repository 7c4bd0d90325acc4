"""The codes room."""
