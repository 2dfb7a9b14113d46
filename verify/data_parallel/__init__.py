"""Data parallel mode is compared with one device that trains on the global batch."""
