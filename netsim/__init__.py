"""Flow-level network simulation: topology, NCCL's choices, max-min sharing with rollback."""
