"""The proof by numbers: some steps on one device beside the same steps on ranks, and judges that nobody here wrote."""
