"""The simulator as a gRPC service: sessions of ranks, kernel costs, the life of a job."""

from phantom.serve.server import Server

__all__ = ["Server"]
