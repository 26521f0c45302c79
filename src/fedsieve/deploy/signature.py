"""Keys of server and nodes: ECDSA on P-384, in OpenSSH files, the form Flower asks of node keys."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsieve.core.errors import ConfigError

_CURVE = ec.SECP384R1()
_HASH = ec.ECDSA(hashes.SHA384())


class Public:
    """A public key: verifies signatures."""

    def __init__(self, key: ec.EllipticCurvePublicKey) -> None:
        self.key = key

    def verifies(self, data: bytes, signature: bytes) -> bool:
        try:
            self.key.verify(signature, data, _HASH)
        except InvalidSignature:
            return False
        return True


class Private:
    """A private key: signs."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.key = key

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, _HASH)

    @property
    def public(self) -> Public:
        return Public(self.key.public_key())


def fresh_key() -> Private:
    """A new key."""
    return Private(ec.generate_private_key(_CURVE))


def read_private(path: Path) -> Private:
    """The private key in an OpenSSH file."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path}: not a readable private key ({error}). `fedsieve cert` makes one."
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE.name:
        raise ConfigError(f"{path}: the key must be ECDSA on P-384, as `fedsieve cert` makes it.")
    return Private(key)


def read_public(path: Path) -> Public:
    """The public key in an OpenSSH file."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path}: not a readable public key ({error}). `fedsieve cert` makes one."
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise ConfigError(f"{path}: the key must be ECDSA on P-384, as `fedsieve cert` makes it.")
    return Public(key)
