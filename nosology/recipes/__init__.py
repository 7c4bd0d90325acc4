"""Recipes that come with the package, one TOML file each."""
