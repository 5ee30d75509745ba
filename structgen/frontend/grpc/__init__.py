"""The gRPC service: protos in `_pb`, their conversion, the servicers, the server."""
