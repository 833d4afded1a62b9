"""What many sequences show together: rates, survival of agreement, growth of drift, causes of each."""
