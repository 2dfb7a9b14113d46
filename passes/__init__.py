"""Passes over the graph: one file, one class, one name in the pipeline. They import ir and ops only."""
