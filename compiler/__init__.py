"""The compiler driver: configuration and the pipeline of passes."""
