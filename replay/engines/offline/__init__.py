"""Offline engines: a small protocol that an engine of one's own satisfies, and the engine around it."""
