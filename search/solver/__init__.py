"""The solver finds the cheapest assignment of variables under a sum of cost tables, with limits and without."""
