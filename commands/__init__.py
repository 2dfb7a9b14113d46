"""This package has the verbs of `mspc`, as they are called on the command line, and what they need for their work."""
