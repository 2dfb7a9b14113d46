"""ops of mspc."""
