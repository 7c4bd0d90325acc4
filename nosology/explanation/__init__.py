"""Why a coder gave a code: weights of the note's words, how faithful they are, and how they look."""
