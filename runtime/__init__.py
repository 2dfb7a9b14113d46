"""runtime of mspc."""
