"""The programs of all ranks as one StableHLO module: kernels run on arrays that write operations."""
