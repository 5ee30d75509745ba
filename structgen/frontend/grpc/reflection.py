"""grpc.reflection v1alpha and v1.

grpcio-reflection ships v1alpha only.  v1 has the same messages under another name, so the same
servicer answers for both, and its descriptor is v1alpha's, renamed.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
V1 = "grpc.reflection.v1.ServerReflection"
DETAILS = (error_details_pb2.BadRequest.DESCRIPTOR.full_name,)


def add_to_server(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Let clients find the services, by full name, and decode the details of errors."""
    servicer = ReflectionServicer([*services, V1ALPHA, V1], _pool(services))
    server.add_generic_rpc_handlers((_handler(V1ALPHA, servicer), _handler(V1, servicer)))


def _handler(service: str, servicer: ReflectionServicer) -> grpc.GenericRpcHandler:
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})


def _pool(services: Iterable[str]) -> DescriptorPool:
    """Copy what is needed into a pool of its own: the global one is not ours to add v1 to."""
    pool = DescriptorPool()
    copied: set[str] = set()
    for symbol in (*services, V1ALPHA, *DETAILS):
        _copy(_file_of(symbol), pool, copied)
    pool.Add(_renamed(_file_of(V1ALPHA)))
    return pool


def _file_of(symbol: str) -> FileDescriptor:
    return descriptor_pool.Default().FindFileContainingSymbol(symbol)


def _copy(file: FileDescriptor, pool: DescriptorPool, copied: set[str]) -> None:
    if file.name in copied:
        return
    for dependency in file.dependencies:
        _copy(dependency, pool, copied)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    pool.Add(proto)
    copied.add(file.name)


def _renamed(file: FileDescriptor) -> FileDescriptorProto:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    text = text_format.MessageToString(proto).replace("v1alpha", "v1")
    return text_format.Parse(text, FileDescriptorProto())
