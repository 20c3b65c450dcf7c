"""Starting, watching and ending the processes of a simulated job."""
