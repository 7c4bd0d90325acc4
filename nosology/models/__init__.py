"""The models room."""
