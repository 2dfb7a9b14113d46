"""The solver: the cheapest assignment of variables under a sum of cost tables, with and without limits."""
