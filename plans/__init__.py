"""Plans and strategies: operator names in files, and the layouts that a graph takes from them."""
