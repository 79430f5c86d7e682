from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReadNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Node(_message.Message):
    __slots__ = ("node", "epoch", "names", "values", "spaces")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SPACES_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[float]
    spaces: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[float]] = ..., spaces: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("spaces", "digests", "ttl_ms")
    SPACES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    spaces: _containers.RepeatedScalarFieldContainer[bytes]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    ttl_ms: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, spaces: _Optional[_Iterable[bytes]] = ..., digests: _Optional[_Iterable[bytes]] = ..., ttl_ms: _Optional[_Iterable[float]] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("statuses", "pins", "pages")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[int]
    pins: _containers.RepeatedScalarFieldContainer[int]
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, statuses: _Optional[_Iterable[int]] = ..., pins: _Optional[_Iterable[int]] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pins: _Optional[_Iterable[int]] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, ended: _Optional[_Iterable[bool]] = ...) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("workers", "digests", "ttl_ms")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    ttl_ms: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, workers: _Optional[_Iterable[str]] = ..., digests: _Optional[_Iterable[bytes]] = ..., ttl_ms: _Optional[_Iterable[float]] = ...) -> None: ...

class CutReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
