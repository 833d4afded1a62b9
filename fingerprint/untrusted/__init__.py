"""Handling what comes from outside: bounded in time and size, regular files only, secrets taken out."""
