"""Code that passes share, one module per topic."""
