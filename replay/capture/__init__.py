"""Capture: taps, row hash, sketch and the trace writer."""
