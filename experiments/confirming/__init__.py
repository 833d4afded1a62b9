"""The experiment of a cause: its runs, what they are compared with, and what that decides."""
