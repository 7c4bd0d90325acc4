"""Tables that the checks read."""
