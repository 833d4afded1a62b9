"""The first difference looked at op by op, and the proof by transplant."""
