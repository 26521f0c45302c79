"""Why a node has no connection, in words its operator can act on."""

import json
from pathlib import Path

import httpx

_ACTIVATION_FAILED = 2004  # Flower's number for a key that is not known, or in use


def reason_of(error: httpx.HTTPError, server: str, certs: Path | None) -> str:
    """Why this node cannot reach `server`, and the way out."""
    text = " ".join(str(e) for e in (error, error.__cause__, error.__context__) if e)
    if isinstance(error, httpx.HTTPStatusError):
        return _refusal(error, server, certs)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return _certificate(text, server, certs)
    if certs is not None and any(
        sign in text for sign in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")
    ):
        return (
            f"{server} does not speak TLS: it is no server with --certs. Is it a trial "
            "(then use --insecure here, on the same machine), or another port?"
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return (
            f"{server} cannot be reached ({error}). Is the server running, and are host and port "
            "right? Trying again."
        )
    if certs is None and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return (
            f"{server} closed the connection without an answer. If it speaks TLS, it wants a node "
            "with --certs, not --insecure. Trying again."
        )
    return f"the connection to {server} was lost ({error or type(error).__name__}); trying again."


def _certificate(text: str, server: str, certs: Path | None) -> str:
    host = server.rpartition(":")[0]
    if "Hostname mismatch" in text or "IP address mismatch" in text:
        return (
            f"the certificate of {server} is not for the name {host!r}. Use the name the server's "
            f"operator gave to `fedsieve cert --host`, or ask for a certificate with {host!r}."
        )
    if "expired" in text or "not yet valid" in text:
        return (
            f"the certificate of {server} is not valid today. Is this machine's clock right? "
            "Else its operator has to make a new one (`fedsieve cert`)."
        )
    return (
        f"the certificate of {server} was not signed by the CA in {certs}/ca.crt: it is another "
        "server, or --certs is the folder of another deployment. Ask its operator for ca.crt."
    )


def _refusal(error: httpx.HTTPStatusError, server: str, certs: Path | None) -> str:
    status = error.response.status_code
    try:
        code = int(json.loads(error.response.text)["code"])
    except (ValueError, KeyError, TypeError):
        code = 0
    if code == _ACTIVATION_FAILED:
        return (
            f"{server} does not admit the key {certs}/node.pub: it is not among the server's "
            "nodes/K.pub (its operator adds it and restarts with --resume), or another node "
            "with the same key is connected. Trying again."
        )
    if status == httpx.codes.UNAUTHORIZED:
        return (
            f"{server} does not accept the signature of the key {certs}/node. Is this machine's "
            "clock right (5 s ahead or 5 minutes behind are too much)? Trying again."
        )
    if status == httpx.codes.NOT_FOUND:
        return (
            f"{server} does not know this call (404): it is no fedsieve server, or one of another "
            "kind (--insecure here and --certs there, or the other way round)."
        )
    if error.response.is_server_error:
        return f"{server} starts, or starts again ({status}). Trying again."
    return f"{server} refused a call ({status} {error.response.text[:200]}). Trying again."
