"""How one row's summaries lie in a device's memory."""

SLOT_WORDS, SLOT_HALVES = 11, 22
"""A slot holds one row's summaries in 88 bytes: int64[11], or 32-bit halves of them."""
L2_HALF, ABSMAX_HALF, SKETCH_HALF = 4, 5, 6
"""Which 32-bit half begins what; the row hash comes first."""
