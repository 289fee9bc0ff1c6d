"""An example of each command, which ends its help: what a newcomer copies.

Owns: the examples. A test finds a command without one, and an example that its command does not take.
"""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "get": ("seats 12A", "seats 12A -o json", "seats photo --bytes-file photo.png"),
    "put": (
        """seats 12A '{"name": "ann"}' --if-absent""",
        "seats 12A --text ann --if-version 17",
        "seats photo --bytes-file photo.png",
    ),
    "increment": ("accounts ann --by -30 --floor 0", "accounts ann --idempotency-key order-17"),
    "append": ("""logs today '{"at": "12:00"}'""", "logs today --text 'a line'"),
    "delete": ("seats 12A", "seats 12A --if-version 17"),
    "txn": ("transfer.json", "- --idempotency-key transfer-17 < transfer.json"),
    "scan": ("seats --prefix 12", "seats --from 10A --to 20A --reverse --limit 5 -o jsonl"),
    "watch": ("seats", "seats --key 12A --since 130 --count 1"),
    "serve": ("", "--config node.toml"),
    "dev": ("", "--nodes 5 --first-port 0"),
    "config show": ("--config node.toml --given",),
    "config check": ("node.toml",),
    "config sample": ("> node.toml",),
    "status": ("", "--profile production -o json"),
    "explain": ("seats/12A", "00000000000004d2/17"),
    "token": ("ann-laptop --tenant ann --scope read --scope write:orders --expires-in 90d >> tokens.toml",),
    "verify": ("data/n1 data/n2 data/n3",),
    "member add": ("n4=10.0.0.4:7400:7401",),
    "member remove": ("n4 --yes",),
    "member repair": ("n2",),
    "leader move": ("", "--to n2"),
    "level show": ("",),
    "level raise": ("--yes",),
    "table declare": ("seats", "clicks --stream --consumer totals --retention 24h"),
    "table list": ("",),
    "table drop": ("seats --incarnation 17",),
    "session list": ("",),
    "session requests": ("00000000000004d2",),
    "session resolve": ("00000000000004d2/17",),
    "flow list": ("",),
    "flow graph": ("", "--dot | dot -Tsvg > flows.svg"),
    "flow show": ("clicks",),
    "flow alter": ("clicks --retention 24h --max-items 5000",),
    "flow delete": ("clicks --force",),
    "consumer list": ("", "clicks"),
    "consumer show": ("clicks stream_rows",),
    "consumer start": ("clicks stream_rows --from 2h",),
    "consumer detach": ("clicks stream_rows",),
    "consumer remove": ("clicks stream_rows --yes",),
    "outbox ls": ("worker.outbox",),
    "outbox drain": ("worker.outbox --profile production",),
    "outbox drop": ("worker.outbox 0000000000000001/9 --yes",),
    "check run": ("--workload bank --faults kill --seconds 20", "--all --faults none"),
    "check replay": ("runs/latest",),
    "check shrink": ("runs/latest",),
    "check file": ("history.jsonl --model cas-register",),
    "cassandra": ("up",),
    "store init": ("sqlite:///srv/rows",),
    "store migrate": ("sqlite:///srv/rows job:TABLES",),
    "store status": ("sqlite:///srv/rows --profile production",),
    "store adopt": ("cassandra://10.0.0.9:9042/rows",),
    "store wipe": ("sqlite:///srv/rows --yes",),
    "snapshot save": ("/srv/backups", "s3://bucket/oncegate"),
    "snapshot inspect": ("/srv/backups --verify",),
    "snapshot prune": ("/srv/backups --keep 7",),
    "snapshot restore": ("/srv/backups --data-dir data/n1 --cluster new --member n1=10.0.0.1:7400:7401",),
    "dead-letters list": ("sqlite:///srv/rows --error KeyError",),
    "dead-letters show": ("sqlite:///srv/rows 130",),
    "dead-letters redrive": ("job.py --store sqlite:///srv/rows",),
    "spark submit": ("job.py --flow clicks --consumer totals --store sqlite:///srv/rows",),
    "spark pack": ("job.zip --with helpers.py",),
    "debug bundle": ("--file bundle.tar.gz",),
    "perf": ("--data-dir /var/lib/oncegate", "--endpoint http://127.0.0.1:7400 --size large"),
    "top": ("", "--count 30 -o jsonl > frames.jsonl"),
}
"""Arguments of commands, by the words of the command."""


def epilog(path: str) -> str | None:
    """Return how the help of a command ends; None for one without an example."""
    lines = (f"  oncegate {path} {arguments}".rstrip() for arguments in EXAMPLES.get(path, ()))
    text = "\n".join(lines)
    return f"\b\nExamples:\n{text}" if text else None
