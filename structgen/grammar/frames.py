"""Messages over a stream socket: a length of four bytes, then so many bytes."""

from __future__ import annotations

import socket

_LENGTH = 4


def send(connection: socket.socket, message: bytes) -> None:
    """Raises OSError: the other end is closed; TimeoutError: it does not read."""
    connection.sendall(len(message).to_bytes(_LENGTH) + message)


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None: the other end is closed, perhaps within a message.

    Raises TimeoutError: nothing came for as long as the socket waits.
    """
    length = _receive(connection, _LENGTH)
    return None if length is None else _receive(connection, int.from_bytes(length))


def _receive(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except ConnectionResetError:  # it closed with something of ours unread
            return None
        if not part:
            return None
        data += part
    return bytes(data)
