"""This package drives a compile: it has the settings, and the pipeline of passes."""
