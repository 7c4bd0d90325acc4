"""Encoders: from the text of a note to one state per token, or to one vector per note."""
