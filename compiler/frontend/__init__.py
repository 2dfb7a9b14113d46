"""The front end makes one graph of a network written in Python. It reads `construct` and never runs it."""
