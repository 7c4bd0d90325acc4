"""The corpora room."""
