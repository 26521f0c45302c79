"""One deployment over TLS with authenticated nodes, on real processes."""

import json

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from deployment import Deployment


def test_a_deployment_over_tls_ends_in_the_bits_of_a_run_in_this_process(tmp_path):
    with Deployment(tmp_path, method="fedavg") as deployment:
        server = deployment.server()
        deployment.nodes()
        there = deployment.finish(server)
    here = deployment.here()
    assert there["model_hash"] == here.summary.model_hash
    assert [row["lost"] for row in deployment.rows() if "lost" in row] == []
    traffic = json.loads((deployment.run / "traffic.json").read_text())
    assert traffic["rounds"] == [1, 3]
    for way in ("up", "down"):
        payload = getattr(here.summary, f"{way}_bytes")
        assert traffic["payload"][way] == there[f"{way}_bytes"] == payload
        layers = [traffic[name][way] for name in ("payload", "envelopes", "flower", "tcp")]
        assert layers == sorted(layers)  # each carries the one before it
