"""Pages and figures made from finished runs."""
