"""The check of the evidence: commits, versions, pages and figures."""
