"""What `phantom run` shows on the terminal: progress and the final table."""
