"""From tokens to one state a token."""
