"""Shared libraries: what a process has loaded, which copies are on disk, what they say of themselves."""
