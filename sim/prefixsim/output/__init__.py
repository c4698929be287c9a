"""Writing a finished run: the folder, its tables."""
