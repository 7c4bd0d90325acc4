"""CAML, LAAT and PLM-ICD: an encoder of words or subwords, then one attention query per code."""
