"""The passes here insert the collectives that layouts ask for, put them into buckets and order them."""
