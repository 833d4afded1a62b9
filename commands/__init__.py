"""The commands: one file each. Options, call, present, exit code."""
