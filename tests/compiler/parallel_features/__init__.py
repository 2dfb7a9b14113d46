"""MindSpore's documented forms of training in parallel are here, one script each."""
