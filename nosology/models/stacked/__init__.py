"""The stacked coder: several trained coders, and a classifier over their scores."""
