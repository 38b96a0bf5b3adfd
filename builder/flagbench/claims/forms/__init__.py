"""The forms in which tables are published, a module for each."""
