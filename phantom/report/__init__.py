"""The report of a finished run: what the step is made of, as text, JSON and one HTML page."""
