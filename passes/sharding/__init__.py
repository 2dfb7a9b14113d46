"""Which layout every value has."""
