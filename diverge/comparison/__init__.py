"""Two traces side by side: which rows belong together, which differ, and what that means for each level."""
