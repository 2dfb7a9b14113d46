"""The passes here remove what nobody needs."""
