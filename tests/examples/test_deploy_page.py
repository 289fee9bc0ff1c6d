"""docs/deploy.md as an operator follows it: every command, three directories and three pairs of ports for machines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import wait_for

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
NODES = ("n1", "n2", "n3")
SSH = """#!/bin/sh
host=${1#root@}; shift
for word; do shift; case $word in /*) word=$MACHINES/$host$word;; esac; set -- "$@" "$word"; done
exec "$@"
"""
SCP = """#!/bin/sh
for to; do :; done
to=${to#root@}; to=$MACHINES/${to%%:*}${to#*:}
for from; do case $from in -p|root@*) ;; *) cp -p "$from" "$to";; esac; done
"""
"""Stand for the programs: a machine's files are below ``$MACHINES/HOST``."""


class Machines:
    """What the page calls its machines, and the shell at the operator's desk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = dict(zip(NODES, zip(*[iter(free_ports(6))] * 2, strict=True), strict=True))
        self.desk = directory / "desk"
        programs = directory / "programs"
        for made in (self.desk, programs):
            made.mkdir()
        for name, text in (("ssh", SSH), ("scp", SCP)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o700)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
        self.environment = {**clean, "PATH": path, "MACHINES": str(directory)}

    def here(self, text: str) -> str:
        """Return commands of the page with the hosts' names, where something connects, as they are on this machine."""
        text = text.replace("DNS:$node.example", "DNS:localhost")
        for node, (http, peer) in self.ports.items():
            text = text.replace(f"{node}={node}.example:7400:7401", f"{node}=localhost:{http}:{peer}")
            text = text.replace(f"https://{node}.example:7400", f"https://localhost:{http}")
        return text

    def etc(self, node: str) -> Path:
        return self.directory / f"{node}.example" / "etc" / "oncegate"

    def on(self, node: str, text: str) -> str:
        """Return text with the paths and the ports of a machine."""
        http, peer = self.ports[node]
        text = re.sub(r"/(etc|var/lib)/oncegate", lambda path: f"{self.directory}/{node}.example{path[0]}", text)
        return text.replace("[::]:7400", f"[::]:{http}").replace("[::]:7401", f"[::]:{peer}")

    def run(self, commands: str) -> str:
        shell = ["bash", "-euo", "pipefail", "-c", self.here(commands)]
        done = subprocess.run(shell, cwd=self.desk, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.mark.faults
@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("curl")), reason="the page uses openssl and curl")
def test_every_command_of_the_page_leads_from_nothing_to_a_first_write_on_three_machines(tmp_path: Path) -> None:
    make, write, copy, start, use = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    machines = Machines(tmp_path)
    machines.run(make)
    assert machines.run(write).count("nothing wrong") == 3
    machines.run(copy)
    check, show, serve = start.splitlines()
    with ExitStack() as running:
        for node in NODES:
            file = machines.etc(node) / "node.toml"
            file.write_text(machines.on(node, file.read_text()))
            assert "nothing wrong" in machines.run(machines.on(node, check))
            log = running.enter_context((tmp_path / f"{node}.log").open("w"))
            command = machines.on(node, serve).split()
            process = subprocess.Popen(command, env=machines.environment, stdout=log, stderr=log)
            running.callback(process.wait, 30)
            running.callback(process.terminate)
        assert f"{machines.etc('n1')}/node.toml:2" in machines.run(machines.on("n1", show))
        ask = use.splitlines()
        connect = "\n".join((ask[0], *(line for line in ask if line.startswith("printf"))))
        for node in NODES:
            ready = f"{connect}\ncurl -K curl.conf https://{node}.example:7400/readyz || true"
            wait_for(lambda ready=ready: machines.run(ready) == "ok\n", 60, f"{node} is ready")
        told = machines.run(use)
    assert (told.count("leader"), told.count("follower")) == (1, 2), told
    first, again = re.findall(r'\{"request":[^}]*\}', told)
    assert first == again, "the second answer is the first one's, replayed"
    assert '"value":"ann"' in told
