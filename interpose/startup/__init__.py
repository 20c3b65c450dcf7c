"""How a Python process becomes a process of the job."""
