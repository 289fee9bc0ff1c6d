"""Two tenants on a checked cluster: the workload's, and one that floods.

Owns: the file of tokens, and that this process speaks for the workload: clients, commands and jobs read the variable
``ONCEGATE_TOKEN``. Run as a program, ``python -m oncegate.proof.check.tenants WORKERS ENDPOINT…`` is the flood: writes,
sessions and reads one after the other, with the token in that variable, until its standard input ends; it prints how
often it was answered, and what.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp

from oncegate.gateway.http.auth import new_token
from oncegate.gateway.http.identity import Scope

TOKEN: Final = "ONCEGATE_TOKEN"  # noqa: S105
TABLE: Final = "flooded"
RATED_PER_S: Final = 20
"""Operations a second at each node of the tenant that has a rate."""
_SCOPES: Final = {
    "workload": [scope.value for scope in Scope],
    "rated": ["read", f"write:{TABLE}"],
    "greedy": ["read", f"write:{TABLE}"],
}
_ANSWER_S: Final = 10.0
_END_S: Final = 20.0
_VALUE: Final = json.dumps("f" * 20_000)


class Tenants:
    """Tokens of a cluster, in ``file``; until :meth:`close`, this process is the workload's tenant."""

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        made = {name: new_token(name, name, scopes) for name, scopes in _SCOPES.items()}
        self._tokens = {name: token for name, (token, _) in made.items()}
        rate = f'[[tenant]]\nname = "rated"\noperations_per_s = {RATED_PER_S}\n'
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text("\n".join([*(entry for _, entry in made.values()), rate]))
        self._before = os.environ.get(TOKEN)
        os.environ[TOKEN] = self._tokens["workload"]

    def flood(self, tenant: str, workers: int, endpoints: Sequence[str]) -> subprocess.Popen[str]:
        """Start the flood of a tenant; returns when one request has ended."""
        command = [sys.executable, "-m", "oncegate.proof.check.tenants", str(workers), *endpoints]
        environment = {**os.environ, TOKEN: self._tokens[tenant]}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        if process.stdout is not None:
            process.stdout.readline()
        return process

    def close(self) -> None:
        """Forget whose tenant this process was; idempotent."""
        if os.environ.pop(TOKEN, None) is not None and self._before is not None:
            os.environ[TOKEN] = self._before


def token() -> str | None:
    """Return what this process proves itself with; None: the nodes know no tokens."""
    return os.environ.get(TOKEN)


def said_at_end(flood: subprocess.Popen[str]) -> str:
    """End a flood; returns what it was answered."""
    try:
        said, _ = flood.communicate("", _END_S)
    except subprocess.TimeoutExpired:
        flood.kill()
        said, _ = flood.communicate()
    return said.strip() or "it said nothing"


async def flood(workers: int, endpoints: Sequence[str]) -> collections.Counter[str]:
    """Send what comes to mind until standard input ends; returns how often each code came, ``ok`` for success."""
    codes: collections.Counter[str] = collections.Counter()
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    headers = {"Authorization": f"Bearer {os.environ[TOKEN]}", "Content-Type": "application/json"}
    patience = aiohttp.ClientTimeout(total=_ANSWER_S)

    async def send() -> None:
        while not ended.done():
            row = f"{random.choice(endpoints)}/v1/tables/{TABLE}/rows/{secrets.token_hex(1)}"
            kind = random.random()
            try:
                if kind < 0.7:
                    key = {"Idempotency-Key": f'"{secrets.token_hex(8)}"'}
                    answering = http.put(row, data=_VALUE, headers=key)
                elif kind < 0.9:
                    answering = http.get(row)
                else:
                    answering = http.post(
                        f"{random.choice(endpoints)}/v1/sessions", json={"nonce": secrets.token_hex()}
                    )
                async with answering as answer:
                    body = await answer.read()
                    refused = answer.status >= 400 and answer.status != 404
                    codes[json.loads(body)["code"] if refused else "ok"] += 1
            except (aiohttp.ClientError, TimeoutError):
                codes["no answer"] += 1
            if codes.total() == 1:
                sys.stdout.write("sends\n")
                sys.stdout.flush()

    async with aiohttp.ClientSession(
        headers=headers, timeout=patience, connector=aiohttp.TCPConnector(limit=0)
    ) as http:
        sending = [asyncio.create_task(send()) for _ in range(workers)]
        await ended
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    return codes


def main() -> None:
    """Flood, then print the codes and how often each came."""
    codes = asyncio.run(flood(int(sys.argv[1]), sys.argv[2:]))
    sys.stdout.write(", ".join(f"{code} {count}" for code, count in codes.most_common()))


if __name__ == "__main__":
    main()
