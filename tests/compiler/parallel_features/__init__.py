"""MindSpore's documented forms of its ways to train in parallel, one script each."""
