"""The text form of graphs: printer, parser, grammar, and the small texts inside."""
