"""Readers of networks that are not Python source. Loaded on demand."""
