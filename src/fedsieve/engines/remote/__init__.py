"""Clients on other machines: calls and answers, signatures, the node's desk, the server's side."""
