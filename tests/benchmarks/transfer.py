"""One host sends bytes to the other: `transfer.py SIZE SENDER` on both prints seconds and what the interface counted.

The seconds are the sender's, until the receiver has acknowledged everything in words of its own; the receiver's are 0.
"""

import os
import socket
import sys
import time

from benchmarks.netlab import interface_bytes


def main(size: int, sender: int) -> None:
    host = int(os.environ["NETLAB_HOST"])
    before, seconds = interface_bytes(), 0.0
    with connect(host) as connection:
        time.sleep(0.2)  # for the buckets to fill
        if host == sender:
            seconds = send(connection, size)
        else:
            receive(connection, size)
    print(seconds, *(after - start for start, after in zip(before, interface_bytes(), strict=True)))


def connect(host: int) -> socket.socket:
    """Host 0 listens."""
    address, port = os.environ["NETLAB_COORDINATOR"].split(":")
    if host == 0:
        with socket.create_server((address, int(port))) as server:
            return server.accept()[0]
    for _ in range(1000):
        try:
            return socket.create_connection((address, int(port)), timeout=10)
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise TimeoutError("nobody listens")


def send(connection: socket.socket, size: int) -> float:
    start = time.perf_counter()
    connection.sendall(bytes(size))
    connection.recv(1)
    return time.perf_counter() - start


def receive(connection: socket.socket, size: int) -> None:
    buffer = bytearray(2**20)
    while size:
        size -= connection.recv_into(buffer, min(size, len(buffer)))
    connection.sendall(b"!")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
