"""Two compiles, dumps or plans are compared here, and what they differ in is told."""
