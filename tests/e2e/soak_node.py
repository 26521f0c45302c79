"""A node that keeps a record: `soak_node.py FILE OPTIONS`, options as `fedsieve node`.

FILE gets a line of JSON for every answer to training: job, round, when, and whether it was taken.
"""

import json
import sys
import time
from pathlib import Path

from fedsieve.cli.app import main
from fedsieve.engines.flower.fleet import Fleet
from fedsieve.engines.remote.desk import Desk
from fedsieve.engines.remote.parcel import Answer, Call, TrainCall, Trained, peek

record = Path(sys.argv[1])
answer, reply = Desk.answer, Fleet.reply
last = {}


def noted_answer(self, parcel):
    answered, call = answer(self, parcel), peek(parcel, Call)
    is_training = isinstance(call.work, TrainCall)
    is_good = is_training and isinstance(peek(answered, Answer).result, Trained)
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


Desk.answer, Fleet.reply = noted_answer, noted_reply
sys.argv[1:2] = ["node"]
main()
