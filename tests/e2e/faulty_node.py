"""A node that misbehaves on purpose: `faulty_node.py FAULTS OPTIONS`, options as `fedsieve node`.

FAULTS is JSON: {"raise": round, "sleep": [round, seconds], "garbage": round, "large": round}. Each
happens once.
"""

import json
import logging
import sys
import time

from fedsieve.cli.app import main
from fedsieve.deploy.envelope import Call, peek
from fedsieve.deploy.node_server import NodeServer
from fedsieve.engine.client import ClientRuntime

faults = json.loads(sys.argv[1])
train, answer = ClientRuntime.train, NodeServer.answer


def faulty_train(self, request):
    if faults.get("raise") == request.round:
        del faults["raise"]
        raise ValueError("on purpose")
    if faults.get("sleep", [0])[0] == request.round:
        logging.getLogger("fedsieve").warning("asleep")
        time.sleep(faults.pop("sleep")[1])
    return train(self, request)


def faulty_answer(self, envelope):
    good, call = answer(self, envelope), peek(envelope, Call)
    if b"Train" in getattr(call.work, "header", b"")[:8]:
        if faults.get("garbage") == call.round:
            del faults["garbage"]
            return b"\x93\x01garbage"
        if faults.get("large") == call.round:
            del faults["large"]
            return good + bytes(3 * 10**6)
    return good


ClientRuntime.train, NodeServer.answer = faulty_train, faulty_answer
sys.argv[1:2] = ["node"]
main()
