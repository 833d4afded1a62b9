"""The sentences of what a comparison found: made from data, at the end, and never read back."""
