"""The coders, one file each, and the bundle folder in which they are kept."""
