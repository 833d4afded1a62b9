"""What evidence makes which cause: one function a cause, by subject."""
