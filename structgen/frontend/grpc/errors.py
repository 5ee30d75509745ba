"""Errors <-> google.rpc.Status, for the server and for the client.

The code is the class's own `status`; the details are BadRequest with the field at fault, RetryInfo
where retrying helps, and ErrorInfo whose reason tells apart the classes that share a code.
"""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from structgen import errors
from structgen.errors import StructgenError

DOMAIN = "structgen"
RETRY_AFTER_S = 1
STATUS_KEY = "grpc-status-details-bin"

# A status travels as HTTP/2 headers, which peers cut off at 8 KiB; a message appears in them three
# times, once percent-encoded (times three) and twice in base64.
MAX_MESSAGE_BYTES = 1000
MAX_FIELD_BYTES = 400

# In the order of their definition: of two with one status, the more general one comes first.
_CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, StructgenError) and cls is not StructgenError
]


def to_status(error: StructgenError) -> Status:
    """Describe an error for the wire; long texts are cut."""
    message = _cut(error.message, MAX_MESSAGE_BYTES)
    status = Status(code=_code(type(error)).value[0], message=message)
    if error.field:
        field = _cut(error.field, MAX_FIELD_BYTES)
        violation = BadRequest.FieldViolation(field=field, description=message)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    if error.retryable:
        retry = RetryInfo()
        retry.retry_delay.seconds = RETRY_AFTER_S
        status.details.add().Pack(retry)
    status.details.add().Pack(ErrorInfo(reason=_reason(type(error)), domain=DOMAIN))
    return status


def from_status(status: Status) -> StructgenError:
    """Restore an error from the wire; its message begins with the path of the field, if any.

    One without our details goes by its code alone.
    """
    cls = _BY_CODE.get(status.code, errors.InternalError)
    field = ""
    for detail in status.details:
        info, bad = ErrorInfo(), BadRequest()
        if detail.Unpack(info) and info.domain == DOMAIN:
            cls = _BY_REASON.get(info.reason, cls)
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
    return cls(f"{field}: {status.message}" if field else status.message, field=field)


def from_call(error: grpc.RpcError) -> StructgenError:
    """Restore an error from a failed call, sync or async."""
    # RpcError itself has no members; what calls raise is always a Call or an AioRpcError too.
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_KEY and isinstance(value, bytes):
            try:
                return from_status(Status.FromString(value))
            except DecodeError:
                break
    return from_status(Status(code=error.code().value[0], message=error.details() or ""))


def _code(cls: type[StructgenError]) -> grpc.StatusCode:
    return grpc.StatusCode[cls.status]


def _reason(cls: type[StructgenError]) -> str:
    """InvalidRequest -> INVALID_REQUEST."""
    name = cls.__name__
    return "".join(f"_{c}" if c.isupper() and at else c.upper() for at, c in enumerate(name))


def _cut(text: str, size: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= size else data[: size - 4].decode(errors="ignore") + " ..."


# Reversed, so that the first of two with one status wins.
_BY_CODE = {_code(cls).value[0]: cls for cls in reversed(_CLASSES)}
_BY_REASON = {_reason(cls): cls for cls in _CLASSES}
