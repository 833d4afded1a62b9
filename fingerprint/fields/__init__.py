"""The table of every field that a fingerprint can have: what it is and what it is read from."""
