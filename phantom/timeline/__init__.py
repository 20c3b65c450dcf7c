"""What happened when, on every rank: reads the recorded detail of a run and writes it as traces."""
