"""Running one sequence again: recording the ops of one forward pass, and patching in rows of another run."""
