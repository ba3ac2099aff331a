"""The benchmark of the audit: what it finds, and how long it takes."""
