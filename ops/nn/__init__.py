"""Operators of layers: activations, normalisations, softmax and attention."""
