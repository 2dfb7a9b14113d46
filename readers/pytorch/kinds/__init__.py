"""The kinds of ATen that are read, one row each: a name, its arguments, and what they are over mspc's operators."""
