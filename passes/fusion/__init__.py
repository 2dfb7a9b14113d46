"""Passes that fuse operators so that memory is read and written once."""
