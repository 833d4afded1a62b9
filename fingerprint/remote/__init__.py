"""A live server: bounded, read-only questions, one file a family of servers."""
