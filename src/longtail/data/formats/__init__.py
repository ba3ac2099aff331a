"""One file for each kind of data that `load` reads."""
