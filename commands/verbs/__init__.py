"""The command line of every verb has a file here, which declares its options and calls its work."""
