"""Our SuperLink: on a socket that only this user can open, and on no port."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from deployment import listening_ports
from fedsieve.deploy.flower import private
from fedsieve.deploy.flower.server import SuperLink
from fedsieve.deploy.processes import IN_MEMORY, Children, own_superlink_command
from fedsieve.deploy.server import _sockets
from fedsieve.deploy.signature import fresh_key


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads /proc")
def test_it_answers_its_operator_and_listens_on_no_port(tmp_path):
    home = _sockets(tmp_path)
    with Children() as children:
        command = own_superlink_command(home / "superlink", IN_MEMORY, is_trial=False)
        children.keep(command, tmp_path / "superlink.log", tmp_path)
        link = SuperLink(f"unix:{home}/superlink")
        link.wait(120)
        keys = [fresh_key().public, fresh_key().public]
        link.admit(keys)
        link.admit(keys)
        assert listening_ports(children._running[0].pid) == []


@pytest.mark.parametrize("is_long", [False, True])
def test_nobody_else_can_enter_the_folder_of_its_socket(is_long, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / ("x" * 120 if is_long else "x")
    folder.mkdir()
    before = os.umask(0)
    try:
        home = _sockets(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert len(str(home / "superlink")) < 104  # what unix systems have in common
    assert _sockets(folder) == home


def test_the_program_starts_without_torch():
    code = "import sys, fedsieve.deploy.flower.private as p; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert private.UNIX == "unix:"
