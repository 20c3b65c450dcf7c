"""A cost request: one dispatched operator as frozen values, and the data types it names."""
