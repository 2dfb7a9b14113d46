"""Small modules in the style that users write, each with its loss."""
