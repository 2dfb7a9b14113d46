"""Several operators as one, made by the passes of passes/fusion."""
