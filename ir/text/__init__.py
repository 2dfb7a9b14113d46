"""The text format of graphs: grammar, printer and parser."""
