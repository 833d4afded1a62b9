"""Probes: one file a source of facts."""
