"""Envelopes: nobody can speak for another, nowhere but where it was meant."""

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import msgspec

from fedsieve.core.errors import WireError
from fedsieve.deploy.envelope import (
    VERSION,
    Answer,
    Call,
    Ready,
    Refused,
    digest,
    peek,
    seal,
    unseal,
)
from fedsieve.deploy.signature import fresh_key

CALL = Call("0" * 32, 1, 2, 3, Refused("words"))


def test_an_envelope_says_what_was_sealed():
    key = fresh_key()
    assert unseal(seal(CALL, key), Call, key.public) == CALL
    assert unseal(seal(CALL, None), Call, None) == CALL


def test_another_key_does_not_vouch():
    with pytest.raises(WireError, match="signature"):
        unseal(seal(CALL, fresh_key()), Call, fresh_key().public)


def test_an_unsigned_envelope_is_refused_where_a_signature_is_expected():
    with pytest.raises(WireError, match="signature"):
        unseal(seal(CALL, None), Call, fresh_key().public)


@pytest.mark.parametrize("place", [0, 10, 30, -1])
def test_a_changed_byte_is_noticed(place):
    key = fresh_key()
    envelope = bytearray(seal(CALL, key))
    envelope[place] ^= 1
    with pytest.raises(WireError):
        unseal(bytes(envelope), Call, key.public)


def test_a_signed_call_is_no_signed_answer():
    """The same bytes under the same key mean one thing only."""
    key = fresh_key()
    version, body, signature = msgspec.msgpack.decode(seal(CALL, key))
    answer = msgspec.msgpack.encode(Answer(b"", 0, Ready()))
    with pytest.raises(WireError, match="signature"):
        unseal(msgspec.msgpack.encode([version, answer, signature]), Answer, key.public)
    with pytest.raises(WireError, match="signature"):
        unseal(msgspec.msgpack.encode([version, body, signature]), Answer, key.public)


def test_the_mark_of_a_call_depends_on_all_of_it():
    other = Call("0" * 32, 1, 2, 4, CALL.work)
    assert digest(seal(CALL, None)) != digest(seal(other, None))
    assert digest(seal(CALL, None)) == digest(seal(CALL, fresh_key()))


@pytest.mark.parametrize("junk", [b"", b"\x93\x01", b"\x92\xc4\x01x\xc4\x00", b"x" * 100])
def test_junk_is_one_kind_of_error(junk):
    with pytest.raises(WireError):
        peek(junk, Call)


def test_an_envelope_of_another_version_is_refused_in_words():
    _, body, signature = msgspec.msgpack.decode(seal(CALL, None))
    for version, parts in ((1, [body, signature]), (VERSION + 1, [VERSION + 1, body, signature])):
        with pytest.raises(WireError, match=f"of version {version}, expected {VERSION}.*the same"):
            peek(msgspec.msgpack.encode(parts), Call)
