"""HTML tables and SVG drawings for notebooks, and progress displays."""
