"""Files of data sets, and what reads them."""
