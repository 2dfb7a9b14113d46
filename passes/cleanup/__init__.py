"""What nobody needs goes."""
