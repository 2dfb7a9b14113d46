"""The attribute that numbers operators before they are sharded, so that values of programs can be matched."""

MARK = "verify"
