"""What this program asks of the operating system: files, folders of the user, other programs, signals."""
