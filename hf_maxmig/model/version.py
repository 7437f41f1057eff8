"""The version, where both the package and its metadata read it."""

__version__ = "0.1.0"
