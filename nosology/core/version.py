"""The version of the package. It stands here, not in `nosology`, because that imports the rooms above."""

__version__ = "0.1.0"
