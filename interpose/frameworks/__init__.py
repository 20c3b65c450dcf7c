"""What single frameworks need beyond PyTorch: their own compiled operators, and their work on the host."""
