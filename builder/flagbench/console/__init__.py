"""What commands print: pages and tables, JSON, errors, progress, and text made safe for a terminal."""
