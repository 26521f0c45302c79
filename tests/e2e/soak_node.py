"""A node that keeps a record: `soak_node.py FILE OPTIONS`, options as `fedsieve node`.

FILE gets a line of JSON for every answer to training: job, round, when, and whether it was taken.
"""

import json
import sys
import time
from pathlib import Path

from fedsieve.cli.app import main
from fedsieve.deploy.envelope import Answer, Call, peek
from fedsieve.deploy.flower.fleet import Fleet
from fedsieve.deploy.node_server import NodeServer

record = Path(sys.argv[1])
answer, reply = NodeServer.answer, Fleet.reply
last = {}


def noted_answer(self, envelope):
    answered, call = answer(self, envelope), peek(envelope, Call)
    is_good = b"Reply" in getattr(peek(answered, Answer).result, "header", b"")[:8]
    last["call"] = (call.job, call.round) if is_good else None
    return answered


def noted_reply(self, message, seconds):
    is_taken = reply(self, message, seconds)
    if last["call"]:
        job, number = last["call"]
        line = {"job": job, "round": number, "at": time.time(), "taken": is_taken}
        with record.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return is_taken


NodeServer.answer, Fleet.reply = noted_answer, noted_reply
sys.argv[1:2] = ["node"]
main()
