"""What training processes and the simulator share: the gRPC service and the layout of its records.

The one part of `phantom` that `interpose` may import. This file imports nothing, to stay light.
"""
