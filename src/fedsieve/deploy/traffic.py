"""`traffic.json`: the bytes of a deployment, layer by layer; each carries the one before it."""

import json
import logging
from pathlib import Path

import httpx

from fedsieve.deploy.dispatch import Remote
from fedsieve.deploy.flower.server import SuperLink
from fedsieve.engine import disk

log = logging.getLogger("fedsieve")


def report(out: Path, remote: Remote, superlink: SuperLink) -> None:
    """Write the bytes of payloads, envelopes, Flower and TCP in the rounds of this server."""
    tcp, first = out / "deploy" / "tcp.json", remote.first_round
    try:
        flower = dict(zip(("up", "down"), superlink.traffic(), strict=True))
    except httpx.HTTPError as error:
        log.warning("the SuperLink does not say what it has sent: %s", error)
        flower = None
    rows = [json.loads(line) for line in (out / "messages.jsonl").open()] if first else []
    rows = [row for row in rows if row["round"] >= first]
    payload = {
        way: sum(row["total_bytes"] for row in rows if row["direction"] == way)
        for way in ("up", "down")
    }
    layers = {
        "rounds": [rows[0]["round"], rows[-1]["round"]] if rows else [],
        "payload": payload,
        "envelopes": dict(remote.envelope_bytes),
        "flower": flower,
        "tcp": json.loads(tcp.read_text()) if tcp.exists() else None,
    }
    disk.write(out / "traffic.json", json.dumps(layers, indent=2).encode() + b"\n")
