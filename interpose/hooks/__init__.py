"""Changes to PyTorch's own Python, outside torch.cuda and Triton."""
