"""From a recipe and corpora to a bundle."""
