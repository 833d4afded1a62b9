"""Running one sequence again with one forward pass seen op by op, and with rows of another run put in."""
