"""`shapes-lvis`: a generated stand-in for LVIS that trains in minutes."""
