"""Rounding or regression: both sides beside a reference trace of a finer dtype."""
