"""The nouns: everything that is written to disk or crosses a package border."""
