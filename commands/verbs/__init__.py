"""The command line of every verb, one file each: its options, and the call of its work."""
