"""Plans of one network are compared: what the search finds, the usual ones, and those that fit into memory."""
