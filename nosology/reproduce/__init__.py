"""Tables and figures of the papers, from the public parts of the package."""
