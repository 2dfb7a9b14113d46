"""The pass here gives all operators of a graph the layouts that cost least together."""
