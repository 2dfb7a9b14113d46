"""The pass that assigns the cheapest combination of layouts to all operators."""
