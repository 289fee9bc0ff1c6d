"""Three real processes, killed with SIGKILL under load: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.consensus.cluster import free_addresses

NODE = Path(__file__).with_name("node_process.py")
DEADLINE_S = 60.0


class NodeProcess:
    """One child, its acknowledged commands, and its other lines."""

    def __init__(self, directory, addresses, name, life, *, quiet=False, **config):
        settings = {
            "directory": str(directory),
            "addresses": addresses,
            "name": name,
            "life": life,
            "quiet": quiet,
            "config": config,
        }
        self.acked, self.lines = [], queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, str(NODE), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            # A line cut by the kill counts for nothing.
            if word == "acked" and line.endswith("\n"):
                self.acked.append(rest)
            else:
                self.lines.put((word, rest))

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        while True:
            got, rest = self.lines.get(timeout=DEADLINE_S)
            if got == word:
                return rest

    def finish(self):
        self.process.wait(timeout=DEADLINE_S)
        self.reader.join()
        self.process.stdout.close()
        self.process.stdin.close()


def wait_for(condition):
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, "the deadline passed"
        time.sleep(0.02)
    return found


def start(directory, addresses, life, **options):
    return [NodeProcess(directory, addresses, name, life, **options) for name in addresses]


def kill_all(nodes):
    for node in nodes:
        node.process.kill()
    for node in nodes:
        node.finish()


def test_every_acknowledged_command_survives_kills_of_all_processes(tmp_path):
    addresses = dict(zip(("n1", "n2", "n3"), free_addresses(3), strict=True))
    acknowledged = set()
    nodes = []
    try:
        for life in range(3):
            nodes = start(tmp_path, addresses, life)
            wait_for(lambda nodes=nodes: sum(len(node.acked) for node in nodes) > 1000)
            kill_all(nodes)
            for node in nodes:
                acknowledged.update(node.acked)
        nodes = start(tmp_path, addresses, 9, quiet=True)

        def agreed():
            found = [json.loads(node.ask("dump")) for node in nodes]
            commits = {report["commit"] for report in found}
            done = len(commits) == 1 and all(report["applied"] == report["commit"] for report in found)
            return found if done and any(report["ready"] for report in found) else None

        reports = wait_for(agreed)
        commands = reports[0]["commands"]
        assert all(report["commands"] == commands for report in reports)
        assert len(set(commands)) == len(commands)
        assert acknowledged <= set(commands)
        assert len(acknowledged) > 3000
        for prefix in {command.rpartition("-")[0] for command in commands}:
            numbers = [int(command.rpartition("-")[2]) for command in commands if command.startswith(prefix + "-")]
            assert numbers == sorted(numbers)
    finally:
        kill_all(nodes)


def test_the_death_of_the_leaders_process_costs_less_than_a_time_out(tmp_path):
    addresses = dict(zip(("n1", "n2", "n3"), free_addresses(3), strict=True))
    nodes = start(tmp_path, addresses, 0, election_ms_min=10_000, election_ms_max=20_000)
    try:
        leader = wait_for(lambda: next((node for node in nodes if len(node.acked) > 200), None))
        others = [node for node in nodes if node is not leader]
        killed_at = time.monotonic()
        leader.process.kill()
        wait_for(lambda: any(node.acked for node in others))
        # Figures belong to the bench; this proves that it is not the time-out that starts the election.
        assert time.monotonic() - killed_at < 5.0
    finally:
        kill_all(nodes)
