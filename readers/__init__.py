"""Networks that are no `construct` in Python are read here. Nothing of it is loaded before there is such a network."""
