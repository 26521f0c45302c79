"""Clients on other machines: server and nodes, signed calls, certificates, the proxy."""
