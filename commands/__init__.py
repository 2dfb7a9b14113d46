"""The commands of `mspc` and their implementation."""
