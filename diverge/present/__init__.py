"""Sentences of a diagnosis: the only place where a finding becomes text, for terminal, HTML and Markdown."""
