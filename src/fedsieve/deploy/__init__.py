"""Clients on other machines: server and nodes, signed calls, certificates, the proxy."""

MAX_MESSAGE_MB = 2000  # the largest answer that a server reads, unless it is told otherwise
