"""Commands of README.md and docs/ are run and what they print is compared; `python -m tests.docs` renews."""
