"""Layer operators: activations, normalisation, softmax and attention."""
