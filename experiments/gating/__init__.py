"""What a release gate decides, and the forms in which build systems read it."""
