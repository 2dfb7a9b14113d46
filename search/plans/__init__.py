"""Plans of one network side by side: what the search finds, the usual ones, and those within a limit of memory."""
