"""What a user types: `phantom COMMAND`."""
