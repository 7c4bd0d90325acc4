"""Rules of code sets: checks of a set of codes, and the payment groups it falls into."""
