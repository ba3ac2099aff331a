"""Programs that make the tables and figures of results/. They are not part of the wheel."""
