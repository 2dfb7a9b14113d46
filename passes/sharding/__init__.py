"""The passes here decide which layout every value has."""
