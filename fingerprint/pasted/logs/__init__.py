"""Readers of start-up logs, one file an engine."""
