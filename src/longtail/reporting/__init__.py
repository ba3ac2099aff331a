"""Pages and figures about finished runs, and the audit of a data set."""
