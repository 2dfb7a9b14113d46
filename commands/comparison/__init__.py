"""What two compiles, dumps or plans differ in."""
