"""CAML and LAAT: a word encoder below one attention query per code."""
