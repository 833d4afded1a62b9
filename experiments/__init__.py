"""What joins reading, executing and comparing: lanes, replays on them, the search for settings, checks."""
