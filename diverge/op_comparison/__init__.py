"""Two re-runs compared op by op from the first difference on, and its proof by transplant."""
