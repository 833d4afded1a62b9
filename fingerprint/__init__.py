"""Reading an environment into a fingerprint, and comparing two of them."""
