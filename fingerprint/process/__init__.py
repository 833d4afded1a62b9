"""Another process: what Linux shows of it, its files, its Python and its packages."""
