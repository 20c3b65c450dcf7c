"""What remains of a run: summary.json and what is made from it."""
