"""Whoever holds only the CA's certificate gets nothing: through the proxy, and through nginx."""

import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
import msgspec
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from deployment import free_port, superlink_command
from fedsieve.deploy import proxy
from fedsieve.deploy.certificates import make_all
from fedsieve.deploy.flower.reasons import reason_of
from fedsieve.deploy.flower.server import SuperLink
from fedsieve.deploy.flower.transport import GridTransport
from fedsieve.deploy.processes import (
    Children,
    proxy_command,
)
from fedsieve.deploy.signature import fresh_key, read_private

NGINX = Path(__file__).parents[2] / "examples" / "deploy" / "nginx.conf"
TRICKS = (
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/control/list-nodes",
    "/v1/runtime/acquire-task",
    "/v1/runtime/pull-messages",
    "/v1/fleet/register-node",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol/start-run",
    "//v1/control/start-run",
    "/V1/control/start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/docs",
    "/openapi.json",
    "/",
)


class Server:
    """A SuperLink with one honest node and a message for it, behind a door."""

    def __init__(self, folder, children, door):
        make_all(folder / "keys", ["localhost"], nodes=2, days=1)
        self.certs = folder / "keys" / "server"
        (folder / "secret").write_bytes(b"secret")
        inner, self.port = free_port(), free_port()
        children.keep(superlink_command(inner, folder, self.certs), folder / "s.log", folder)
        self.trust = ssl.create_default_context(cafile=self.certs / "ca.crt")
        self.ca = (self.certs / "ca.crt").read_bytes()
        self.link = SuperLink(f"127.0.0.1:{inner}", self.ca, b"secret")
        self.link.wait(600)
        door(self, folder, children, inner)
        own = read_private(folder / "keys" / "node-0" / "node")
        self.other = read_private(folder / "keys" / "node-1" / "node")  # admitted as well
        for _ in range(2):  # as after a restart: a key that is known is no error
            self.link.admit([own.public, self.other.public])
        self.honest = self.fleet(own)
        end = time.monotonic() + 120
        while True:
            try:
                self.node = self.honest.ActivateNode(_activation(own)).node_id
                break
            except httpx.TransportError:  # the door is not open yet
                assert time.monotonic() < end
                time.sleep(0.2)
        self.transport = GridTransport(self.link.connect)

    def fleet(self, key):
        """A node's own client, through the door."""
        signed = NodeAuthHttpInterceptor(key.key, key.public.key)
        return FleetHttpClient.from_server_address(
            f"localhost:{self.port}",
            insecure=False,
            root_certificates=self.ca,
            interceptors=[signed],
        )


def by_proxy(server, folder, children, inner):
    settings = proxy.Settings(
        host="127.0.0.1", port=server.port, superlink=f"127.0.0.1:{inner}",
        ca=str(server.certs / "ca.crt"), certificate=str(server.certs / "server.crt"),
        key=str(server.certs / "server.key"), max_bytes=10**6, traffic=str(folder / "tcp.json"),
    )  # fmt: skip
    (folder / "proxy.json").write_bytes(msgspec.json.encode(settings))
    children.keep(proxy_command(folder / "proxy.json"), folder / "proxy.log", folder)


def by_nginx(server, folder, children, inner):
    text = NGINX.read_text()
    for old, new in {
        "listen 8443 ssl": f"listen {server.port} ssl",
        "127.0.0.1:8000": f"127.0.0.1:{inner}",
        "/etc/fedsieve": str(server.certs),
        "client_max_body_size 64m": "client_max_body_size 1m",
    }.items():
        assert old in text
        text = text.replace(old, new)
    whole = f"events {{}}\npid {folder}/nginx.pid;\nerror_log {folder}/n.log;\nhttp {{\n"
    (folder / "nginx.conf").write_text(f"{whole}access_log off;\n{text}\n}}\n")
    command = [shutil.which("nginx"), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    children.keep(command, folder / "nginx.log", folder)


@pytest.fixture(scope="module", params=[by_proxy, by_nginx])
def server(request, tmp_path_factory):
    if request.param is by_nginx and shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp(request.param.__name__)
    with Children() as children:
        yield Server(folder, children, request.param)


def _activation(key):
    pem = public_key_to_bytes(key.public.key)
    return ActivateNodeRequest(public_key=pem, heartbeat_interval=30)


def raw_post(server, path, body):
    """A request whose path is sent as it is, whatever a client library would make of it."""
    command = [
        "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--path-as-is",
        "--cacert", str(server.certs / "ca.crt"), "-H", "content-type: application/x-protobuf",
        "--data-binary", "@-", f"https://localhost:{server.port}{path}",
    ]  # fmt: skip
    done = subprocess.run(command, input=body, capture_output=True, check=False)
    return int(done.stdout)


def test_no_key_can_be_registered_no_run_started_and_no_task_taken(server):
    key = public_key_to_bytes(fresh_key().public.key)
    bodies = {
        "/v1/control/register-node": RegisterNodeRequest(public_key=key).SerializeToString(),
        "/v1/control/start-run": StartRunRequest().SerializeToString(),
        "/v1/runtime/acquire-task": AcquireTaskRequest(
            supported_task_types=["flwr-serverapp"]
        ).SerializeToString(),
    }
    with httpx.Client(verify=server.trust) as peer:
        for path in TRICKS:
            url = f"https://localhost:{server.port}{path}"
            assert peer.post(url, content=bodies.get(path, b"")).status_code == 404, path
    runs = server.link.control().ListRuns(ListRunsRequest()).run_dict
    assert set(runs) == set(server.link.runs)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_paths_that_are_no_paths_lead_nowhere(server):
    for path in TRICKS:
        assert raw_post(server, path, b"") in {400, 404}, path


def test_a_key_that_nobody_registered_is_turned_away(server):
    stranger = fresh_key()
    with pytest.raises(httpx.HTTPStatusError) as refused:
        server.fleet(stranger).ActivateNode(_activation(stranger))
    assert 400 <= refused.value.response.status_code < 500
    told = reason_of(refused.value, "server:8443", Path("node-0"))
    assert "server:8443 does not admit the key node-0/node.pub" in told


@pytest.mark.parametrize("is_admitted", [False, True])
def test_only_the_node_itself_can_read_its_messages(server, is_admitted):
    thief, node = server.fleet(fresh_key()), Node(node_id=server.node)
    if is_admitted:
        thief = server.fleet(server.other)
        assert thief.ActivateNode(_activation(server.other)).node_id != server.node
    server.transport.push({server.node: b"a secret envelope"}, 300)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        thief.PullMessages(PullMessagesRequest(node=node))
    assert refused.value.response.status_code == 401
    found = server.honest.PullMessages(PullMessagesRequest(node=node))
    assert len(found.messages_list) == 1
    tree = found.message_object_trees[0].object_id
    wanted = PullObjectRequest(node=node, run_id=server.link.runs[-1], object_id=tree)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        thief.PullObject(wanted)
    assert refused.value.response.status_code == 401
    assert server.honest.PullObject(wanted).object_content


def test_a_request_beyond_the_limit_is_not_taken(server):
    with httpx.Client(verify=server.trust) as peer:
        url = f"https://localhost:{server.port}/v1/fleet/push-object"
        assert peer.post(url, content=bytes(2 * 10**6)).status_code == 413
