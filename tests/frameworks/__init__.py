"""Training frameworks, unmodified, under `phantom run`: the matrix of docs/frameworks.md."""
