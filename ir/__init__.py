"""Types, layouts, graphs and mistakes: what all others stand on."""
