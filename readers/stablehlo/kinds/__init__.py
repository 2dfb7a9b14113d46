"""The operations of StableHLO and CHLO that are read, by theme: each has a function that emits mspc's operators."""
