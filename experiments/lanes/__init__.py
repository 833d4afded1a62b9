"""A lane as a person asks for it: resolved to an engine, in this process or in another."""
