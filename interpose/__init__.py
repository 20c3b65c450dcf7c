"""The virtual GPU that lives inside every training process. Imports nothing by itself."""
