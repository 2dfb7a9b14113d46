"""The text form of graphs has a grammar, a printer and a parser; here are also the small texts inside of it."""
