"""The ATen operators that are read: one row each, with name, arguments and a function of mspc's operators."""
