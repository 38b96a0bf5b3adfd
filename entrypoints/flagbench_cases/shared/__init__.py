"""What every part uses: configuration, errors, spool, output, files. It imports no torch."""
