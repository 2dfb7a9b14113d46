"""The collectives that layouts ask for, their buckets and their order."""
