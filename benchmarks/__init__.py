"""Everything that makes the tables and figures of results/; outside the wheel."""
