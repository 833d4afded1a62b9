"""The postmortem of a result folder: one model of it, shown as HTML and as Markdown."""
