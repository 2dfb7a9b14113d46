"""Communication of ranks as operators: collectives, exchanges, sends and receives."""
