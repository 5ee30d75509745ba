"""What can go wrong, as one tree.

    StructgenError
    ├── InvalidRequest            the caller's fault: names field, value and limit
    │   └── ConstraintError       the constraint cannot be compiled or honoured
    │       └── BeyondBackend     this library does not take it; another one may
    ├── Unsupported               well formed, but this server or backend does not offer it
    ├── NotFound                  an id that nothing answers to
    ├── DuplicateRequest          a live request has this id already
    ├── LimitExceeded             a bound was hit: queue, message size, compile time or memory
    │   └── ConstraintTooLarge    a constraint beyond the size that is taken at all
    ├── DeadlineExceeded          the caller's deadline passed
    ├── Cancelled                 the caller went away
    ├── EngineDead                the engine process is gone or draining; retrying helps
    ├── InternalError             our bug, for this request alone
    └── ConfigError               the server cannot start this way (never reaches a client)

Each class carries the gRPC status name it is answered with and whether a retry can help.  A
request's error crosses from the engine to the front end as plain data: `to_wire`, `from_wire`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class StructgenError(Exception):
    """Base of every error that structgen raises on purpose.

    `field` is the path of the request field at fault ("input.sampling.top_p"), or "" for none.
    """

    status: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequest(StructgenError):
    status = "INVALID_ARGUMENT"


class ConstraintError(InvalidRequest):
    """The constraint is malformed, unsupported or unsatisfiable; says where."""


class BeyondBackend(ConstraintError):
    """The constraint makes sense, but is more than this library takes; another one may."""


class Unsupported(StructgenError):
    status = "UNIMPLEMENTED"


class NotFound(StructgenError):
    status = "NOT_FOUND"


class DuplicateRequest(StructgenError):
    status = "ALREADY_EXISTS"


class LimitExceeded(StructgenError):
    status = "RESOURCE_EXHAUSTED"
    retryable = True


class ConstraintTooLarge(LimitExceeded):
    retryable = False


class DeadlineExceeded(StructgenError):
    status = "DEADLINE_EXCEEDED"


class Cancelled(StructgenError):
    status = "CANCELLED"


class EngineDead(StructgenError):
    status = "UNAVAILABLE"
    retryable = True


class InternalError(StructgenError):
    status = "INTERNAL"


class ConfigError(StructgenError):
    status = "FAILED_PRECONDITION"


class WireError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request's error on its way from the engine to the front end."""

    kind: str
    message: str
    field: str = ""


def to_wire(error: Exception) -> WireError:
    """Reduce an exception to plain data; one that is not ours is an InternalError.

    One of a class that is not in the tree above arrives as the class that it derives from.
    """
    if isinstance(error, StructgenError):
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _BY_NAME)
        return WireError(kind, error.message, error.field)
    return WireError(InternalError.__name__, f"{type(error).__name__}: {error}")


def from_wire(error: WireError) -> StructgenError:
    """Restore the exception that `to_wire` reduced."""
    return _BY_NAME[error.kind](error.message, field=error.field)


_BY_NAME: dict[str, type[StructgenError]] = {
    cls.__name__: cls
    for cls in (
        StructgenError,
        InvalidRequest,
        ConstraintError,
        BeyondBackend,
        Unsupported,
        NotFound,
        DuplicateRequest,
        LimitExceeded,
        ConstraintTooLarge,
        DeadlineExceeded,
        Cancelled,
        EngineDead,
        InternalError,
        ConfigError,
    )
}
