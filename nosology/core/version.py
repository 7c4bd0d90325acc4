"""The version of the package: a module without imports, so that a build can read it."""

__version__ = "0.2.0"
