"""A name server for IPv4 addresses: every name is 127.0.0.1."""

import socket
import struct
import sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
while True:
    query, client = server.recvfrom(512)
    end = query.index(b"\0", 12) + 5
    is_ipv4 = query[end - 4 : end - 2] == b"\0\1"
    answer = b"\xc0\x0c" + struct.pack("!HHIH4s", 1, 1, 60, 4, bytes([127, 0, 0, 1]))
    header = query[:2] + b"\x81\x80" + struct.pack("!HHHH", 1, int(is_ipv4), 0, 0)
    server.sendto(header + query[12:end] + (answer if is_ipv4 else b""), client)
