"""An investigation: what A and B are, and the lines that say what each step found."""
