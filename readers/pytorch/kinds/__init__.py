"""The kinds of ATen that are read, one row each: a name, its arguments, and a function of mspc's operators."""
