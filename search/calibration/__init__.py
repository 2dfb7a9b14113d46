"""Measurement of the machine's rates, and the files that hold them."""
