"""One rank's own graph."""
