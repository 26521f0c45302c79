"""The grid: a reply whose pieces do not come holds nobody up."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
from flwr.app import Message

from fedsieve.core.errors import WireError
from fedsieve.deploy.flower.grid import RuntimeGrid
from fedsieve.deploy.flower.private import identify, pieces_of
from fedsieve.deploy.flower.transport import pack, unpack


class Link:
    """A SuperLink that knows replies, of which some pieces are not there yet, or gone."""

    def __init__(self):
        self.announced, self.objects, self.confirmed = {}, {}, []

    def has(self, name, text, *, complete=True):
        identify(1, 1, 1)
        asked = Message(pack(b"call"), dst_node_id=7, message_type="train", ttl=60)
        asked.metadata.__dict__["_message_id"] = name
        pieces = pieces_of(Message(pack(text), reply_to=asked))
        self.announced[name] = pieces
        self.objects |= dict.fromkeys(pieces.objects, b"") if not complete else pieces.objects
        return pieces

    def PullMessages(self, request):  # noqa: N802 - Flower's name
        found = [self.announced.pop(n) for n in request.message_ids if n in self.announced]
        return SimpleNamespace(
            messages_list=[p.announced for p in found],
            message_object_trees=[p.tree for p in found],
        )

    def PullObject(self, request):  # noqa: N802
        content = self.objects.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def test_a_reply_whose_pieces_are_missing_holds_nobody_up_and_counts_when_they_come():
    link = Link()
    late = link.has("m1", b"late", complete=False)
    link.has("m2", b"there")
    grid = RuntimeGrid(link, 1, 1)
    assert [unpack(m.content) for m in grid.pull_messages(["m1", "m2"])] == [b"there"]
    assert list(grid.pull_messages(["m1"])) == []
    link.objects |= late.objects
    (reply,) = grid.pull_messages(["m1"])
    assert unpack(reply.content) == b"late"
    assert reply.metadata.reply_to_message_id == "m1"
    assert len(link.confirmed) == 2


def test_a_reply_whose_sender_broke_off_is_said_to_be_gone():
    link = Link()
    late = link.has("m1", b"late", complete=False)
    grid = RuntimeGrid(link, 1, 1)
    assert list(grid.pull_messages(["m1"])) == []
    for name in late.objects:
        del link.objects[name]
    with pytest.raises(WireError, match="its sender broke off"):
        grid.pull_messages(["m1"])
    assert list(grid.pull_messages(["m1"])) == []


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (503, 3), (401, 1)])
def test_a_call_the_superlink_fails_to_do_is_repeated_and_one_it_refuses_is_not(status, tries):
    link, calls = Link(), []

    def failing(request):
        calls.append(request)
        if len(calls) < 3:
            asked = httpx.Request("POST", "http://superlink")
            response = httpx.Response(status, request=asked)
            raise httpx.HTTPStatusError("no", request=asked, response=response)
        return Link.PullMessages(link, request)

    link.PullMessages = failing
    link.has("m1", b"there")
    grid = RuntimeGrid(link, 1, 1)
    if tries == 1:
        with pytest.raises(httpx.HTTPStatusError):
            grid.pull_messages(["m1"])
    else:
        assert len(grid.pull_messages(["m1"])) == 1
    assert len(calls) == tries
