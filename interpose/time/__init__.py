"""The rank's virtual time: its stream to the simulator, clocks, threads, stores and steps."""
