"""Inference engines by their arguments: how these are spelled, and which fields they set."""
