"""The passes here make one rank's own graph."""
