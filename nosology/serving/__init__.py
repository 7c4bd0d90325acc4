"""From a bundle to suggestions."""
