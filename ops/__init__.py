"""Operators. Each is one class with its types, sharding rule, gradient, kernel and samples."""
