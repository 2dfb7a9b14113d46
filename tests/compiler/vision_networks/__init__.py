"""Convolutional networks as their papers describe them, in narrow widths, spelled as public code spells them."""
