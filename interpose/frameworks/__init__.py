"""What single frameworks need beyond PyTorch: their own compiled operators, and host work that they execute."""
