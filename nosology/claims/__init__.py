"""Claims: from suggested codes to the code set of an encounter, by the guidelines and the tabular list."""
