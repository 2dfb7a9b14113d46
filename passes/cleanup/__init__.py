"""The passes here remove unneeded nodes."""
