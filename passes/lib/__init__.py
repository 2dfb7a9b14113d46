"""Passes share the code here: a module for each topic, such as gradients, pieces of collectives, or stages."""
