"""The plans of one network side by side: what the search finds, the usual ones, and those that fit into memory."""
