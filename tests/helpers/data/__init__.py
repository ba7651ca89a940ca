"""Files of data sets, and their readers."""
