"""Another process: what Linux tells of it, its Python, and which engine it is."""
