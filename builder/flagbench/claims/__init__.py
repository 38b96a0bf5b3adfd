"""Published rows, flagbench's claims or a CSV file, checked for what cannot be true."""
