"""Certificates and keys for a trial: what a small CA would hand out.

DIR/ca/        ca.crt ca.key
DIR/server/    ca.crt server.crt server.key sign sign.pub nodes/0.pub nodes/1.pub ...
DIR/node-0/    ca.crt server.pub node node.pub
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsieve.core.errors import ConfigError
from fedsieve.deploy.signature import Private, fresh_key

LOOPBACK = ("localhost", "127.0.0.1")
_PRIVATE = 0o600


def make_all(folder: Path, hosts: Sequence[str], nodes: int, days: int) -> None:
    """Write the certificates and keys of a CA, a server and `nodes` nodes."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: keys are never written over. Choose another.")
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca = _certificate(ca_key, ca_key, None, "fedsieve trial CA", (), days)
    server = _certificate(server_key, ca_key, ca, hosts[0], (*hosts, *LOOPBACK), days)
    signing = fresh_key()
    _write_pem(folder / "ca", "ca", ca, ca_key)
    _write_pem(folder / "server", "server", server, server_key)
    _write(folder / "server" / "ca.crt", _pem(ca))
    write_key(folder / "server" / "sign", signing)
    for client in range(nodes):
        key, home = fresh_key(), folder / f"node-{client}"
        write_key(home / "node", key)
        _write(folder / "server" / "nodes" / f"{client}.pub", _ssh(key))
        _write(home / "ca.crt", _pem(ca))
        _write(home / "server.pub", _ssh(signing))


def write_key(path: Path, key: Private) -> None:
    """Write a private key, and its public part beside it as `.pub`."""
    data = key.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    _write(path, data, _PRIVATE)
    _write(path.with_name(path.name + ".pub"), _ssh(key))


def _certificate(
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    name: str,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not issuer, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(_usage(is_ca=not issuer), critical=True)
    )
    if issuer:
        server_auth = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        names = [_host(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(server_auth, critical=False).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA384())


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_pem(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    _write(folder / f"{name}.crt", _pem(certificate))
    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(folder / f"{name}.key", data, _PRIVATE)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file with the right permissions from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise ConfigError(f"{path} exists: keys are never written over. Choose another folder.")
    path.touch(mode=mode)
    path.write_bytes(data)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _ssh(key: Private) -> bytes:
    return (
        key.public.key.public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        + b"\n"
    )
