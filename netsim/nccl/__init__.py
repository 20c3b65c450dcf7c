"""What NCCL chooses, what its algorithms load, and how long they take to start."""
