"""Activations, normalisations, softmax and attention."""
