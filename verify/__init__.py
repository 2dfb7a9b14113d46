"""The proof by numbers compares steps on ranks with the same steps on one device, and both with outside judges."""
