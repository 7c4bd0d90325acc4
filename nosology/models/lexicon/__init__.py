"""The lexicon coder: terms found in the note, with or without training."""
