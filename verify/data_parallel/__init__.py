"""Data parallel mode beside one device that trains on the global batch."""
