"""What is used of Flower, and answers that Flower itself cannot read."""

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import fedsieve
from fedsieve.core.errors import ConfigError
from fedsieve.deploy import flower, versions
from fedsieve.deploy.flower import private
from fedsieve.deploy.flower.transport import GridTransport
from fedsieve.deploy.open_calls import Arrived, LostError
from grid import LocalGrid

HERE = Path(flower.__file__).parent
SOURCE = Path(fedsieve.__file__).parent
PUBLIC = {
    "flwr": {"flwr.app", "flwr.serverapp"},
    "uvicorn": {"uvicorn"},
    "httpx": {"httpx"},
}


def imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def private_imports(path):
    """Modules of other projects that are not of their public interface."""
    return {
        module
        for module in imported(path.read_text())
        if module.split(".")[0] in PUBLIC and module not in PUBLIC[module.split(".")[0]]
    }


def test_one_file_alone_goes_beyond_public_interfaces():
    found = {p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if private_imports(p)}
    assert found == {"deploy/flower/private.py"}


def test_each_private_module_that_is_imported_has_its_reason():
    assert private_imports(HERE / "private.py") == set(private.PRIVATE)
    assert all(len(reason) > 10 for reason in private.PRIVATE.values())


@pytest.mark.parametrize("version", ["1.40.9", "1.43.0", "1.4.1", "2.41.0"])
def test_other_versions_of_flower_are_refused_with_the_way_out(version, monkeypatch):
    monkeypatch.setattr(versions, "version", lambda _: version)
    with pytest.raises(ConfigError, match=rf"flwr {version}.*1\.41 and 1\.42.*fedsieve\[flower\]"):
        importlib.reload(flower)


def test_versions_are_those_of_the_extra(monkeypatch):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    first, last = flower.VERSIONS[0], flower.VERSIONS[-1]
    after = f"1.{int(last.split('.')[1]) + 1}"
    assert project["optional-dependencies"]["flower"][0] == f"flwr>={first},<{after}"
    for version in (f"{first}.0", f"{last}.7"):
        monkeypatch.setattr(versions, "version", lambda _, found=version: found)
        importlib.reload(flower)


class Choking(LocalGrid):
    """Like Flower's grid, it fails for a whole batch when one answer in it is malformed."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        if any(reply.content == {} for reply in map(self.opened, replies)):
            raise ValueError("no such object")
        return replies

    def opened(self, reply):
        if reply.metadata.src_node_id == self.bad:
            reply.content.clear()
        return reply


def test_an_answer_that_flower_cannot_read_is_a_failure_of_its_sender_alone():
    grid = Choking({100: lambda envelope: b"good", 101: lambda envelope: b"bad"})
    grid.bad = 101
    transport = GridTransport(lambda: grid)
    envelopes = {100: b"call", 101: b"call"}
    names = transport.push(envelopes, 30)
    with pytest.raises(LostError):  # all answers of the batch are gone: calls go out again
        transport.pull(list(names))
    names = {node: name for name, node in transport.push(envelopes, 30).items()}
    good, bad = transport.pull([names[100], names[101]])
    assert good == Arrived(names[100], b"good")
    assert bad == Arrived(names[101], b"", "its message cannot be read: no such object")
