"""A node's loop: every reply answers its own message, whatever became of those before."""

import logging
import time

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
from flwr.app import Message

from fedsieve.core.errors import WireError
from fedsieve.deploy.flower import node
from fedsieve.deploy.flower.fleet import BrokenError
from fedsieve.deploy.flower.private import identify
from fedsieve.deploy.flower.transport import pack, unpack


def message(text):
    identify(1, 1, 1)
    made = Message(pack(text), dst_node_id=7, message_type="train", ttl=60)
    made.metadata.__dict__["_message_id"] = text.decode()
    return made


class Scripted:
    """A connection that plays `events`: messages, errors, None for nothing new."""

    def __init__(self, events, refuses=()):
        self.events, self.refuses = list(events), dict(refuses)
        self.replies, self.joins, self.has_left = [], 0, False

    def pull(self):
        event = self.events.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    def reply(self, reply, seconds):
        name = reply.metadata.reply_to_message_id
        self.replies.append((name, None if reply.has_error() else unpack(reply.content)))
        outcome = self.refuses.pop(name, True)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def rejoin(self):
        self.joins += 1

    def leave(self):
        self.has_left = True

    def play(self, answer=lambda envelope: b"re " + envelope, **more):
        node.serve(self, answer, lambda: not self.events, **more)
        return self


def refusal(status):
    request = httpx.Request("POST", "http://server")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(node, "_PAUSE_SECONDS", (0.0, 0.0))


TROUBLES = {
    "late": False,
    "its run was stopped": refusal(403),
    "the server broke off": httpx.ReadError("gone"),
    "the server is not there": refusal(503),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_reply_out_of_turn_does_not_shift_those_that_follow(trouble):
    names = [b"m1", b"m2", b"m3", b"m4"]
    events = [message(names[0]), message(names[1]), None, message(names[2]), message(names[3])]
    played = Scripted(events, {"m2": TROUBLES[trouble]}).play()
    assert played.replies == [(n.decode(), b"re " + n) for n in names]
    assert played.has_left


def test_a_message_that_breaks_off_is_given_up_and_asked_for_again():
    events = [BrokenError("half"), ValueError("no such object"), message(b"m1")]
    played = Scripted(events).play()
    assert played.replies == [("m1", b"re m1")]
    assert played.joins == 2  # the server sees it connect anew, and sends its call again


def test_who_may_not_ask_gets_an_error_and_the_next_one_an_answer():
    def answer(envelope):
        if envelope == b"m1":
            raise WireError("not signed")
        return envelope

    played = Scripted([message(b"m1"), message(b"m2")]).play(answer)
    assert played.replies == [("m1", None), ("m2", b"m2")]


def test_a_reason_is_told_once_and_its_end_too(caplog):
    caplog.set_level(logging.WARNING, "fedsieve")
    events = [httpx.ConnectError("refused")] * 5 + [None]
    Scripted(events).play(why=lambda error: f"because: {error}")
    assert [r.getMessage() for r in caplog.records] == ["because: refused", "connected again"]


def test_refusals_while_a_server_starts_are_told_only_if_they_stay(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "fedsieve")
    Scripted([refusal(401)] * 3 + [None]).play(why=lambda error: "refused")
    assert not caplog.records
    monkeypatch.setattr(node, "_START_SECONDS", 0.0)
    Scripted([refusal(401), refusal(401), None]).play(why=lambda error: "refused")
    assert [r.getMessage() for r in caplog.records] == ["refused", "connected again"]


def test_the_end_does_not_wait_for_a_call_that_is_held_back():
    class Held(Scripted):
        def pull(self):
            self.events.clear()
            time.sleep(5)

    start = time.monotonic()
    assert Held([None]).play().has_left
    assert time.monotonic() - start < 3
