"""Flower's grid in one process: what is pushed is answered at once, through Flower's own types."""

from pathlib import Path

import msgspec
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedsieve.core.errors import WireError
from fedsieve.deploy.dispatch import RemoteJob
from fedsieve.deploy.flower.private import ErrorCode, NodeInfo, identify
from fedsieve.deploy.flower.transport import pack, unpack
from fedsieve.deploy.node import Node, open_job
from fedsieve.deploy.node_server import NodeServer
from fedsieve.deploy.server import hello_of
from fedsieve.engine.request_encoding import RESPONSES, Encoded, Kinds, encode
from fedsieve.engine.store import Receipt

JOB = "0" * 32


def kind_of(encoded):
    """The name of the request or response in a call or an answer; "" if it holds none."""
    return msgspec.msgpack.decode(encoded.header)[0] if isinstance(encoded, Encoded) else ""


def response_of(answer):
    return RESPONSES.decode(answer.result, Kinds(Receipt))


def with_response(answer, response):
    return msgspec.structs.replace(answer, result=encode(response))


class LocalGrid(Grid):
    """Nodes by Flower's number; each is a node_server's `answer`."""

    def __init__(self, nodes):
        self.nodes, self.replies, self.pushed = nodes, {}, 0
        identify(1, 1, 1)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [NodeInfo(node_id=node, last_activated_at="1") for node in self.nodes]

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.pushed += 1
            name = f"m{self.pushed}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            answer = self.nodes[message.metadata.dst_node_id]
            try:
                envelope = answer(unpack(message.content))
            except WireError as error:
                fault = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=str(error))
                self.replies[name] = Message(fault, reply_to=message)
            else:
                if envelope is not None:
                    self.replies[name] = Message(pack(envelope), reply_to=message)
        return names

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def node_servers(job, folder: Path, keys=None, server=None):
    """A node_server for every client of a job, with the job's own data."""
    found = {}
    for client in range(job.federation.num_clients):
        own = Node(server="localhost:1", client=client, data="job", store=folder / str(client))
        key = None if keys is None else keys[client]
        found[client] = NodeServer(
            client, own.store, lambda h, own=own: open_job(own, h), key, server
        )
    return found


def terms_of(job, **more):
    given = {
        "job": JOB,
        "session": 1,
        "hello": hello_of(job),
        "num_clients": job.federation.num_clients,
        "seconds": 30.0,
        "poll_seconds": 0.01,
    }
    return RemoteJob(**given | more)
