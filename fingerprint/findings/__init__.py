"""What a person should hear at once about what was read, as data: damage, contradictions, mixed libraries."""
