"""`rip record`: a proxy that records requests and answers; and reading what others recorded."""
