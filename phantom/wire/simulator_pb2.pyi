from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JsonMessage(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class RankBatch(_message.Message):
    __slots__ = ("rank", "records", "acked")
    RANK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    records: bytes
    acked: int
    def __init__(self, rank: _Optional[int] = ..., records: _Optional[bytes] = ..., acked: _Optional[int] = ...) -> None: ...

class EngineBatch(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    def __init__(self, records: _Optional[bytes] = ...) -> None: ...

class KernelBatch(_message.Message):
    __slots__ = ("kernels", "rank")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    kernels: bytes
    rank: int
    def __init__(self, kernels: _Optional[bytes] = ..., rank: _Optional[int] = ...) -> None: ...

class CostBatch(_message.Message):
    __slots__ = ("costs",)
    COSTS_FIELD_NUMBER: _ClassVar[int]
    costs: bytes
    def __init__(self, costs: _Optional[bytes] = ...) -> None: ...
