"""What a report reads: the result folder through SQL views, and the two traces where they still exist."""
