"""A lane, one way to run an engine: as requested, and resolved to an engine in this process or another."""
