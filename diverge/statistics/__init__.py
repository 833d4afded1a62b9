"""Statistics without traces: intervals of shares, survival of agreement, jumps in a series."""
