"""``oncegate snapshot``: back a running cluster up, look at backups, and begin a new cluster with one.

Exit codes: 0 done, 1 the node refuses, or a backup is damaged, 2 misuse, 3 the cluster or the place does not answer.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask
from oncegate.gateway.cli.output import Format, Output, Yes, as_json, checked, confirm, failed, show
from oncegate.gateway.cli.progress import Unit, progress
from oncegate.gateway.cli.store import told
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, download

if TYPE_CHECKING:
    from oncegate.gateway.backup.manifest import Manifest
    from oncegate.gateway.backup.restoring import Restored
    from oncegate.gateway.backup.shelf import Shelf
    from oncegate.gateway.backup.survivor import Known
    from oncegate.gateway.node.settings import MemberAddress

snapshot = typer.Typer(help="Backups: save, inspect, prune, restore into a new cluster.", no_args_is_help=True)
Place = Annotated[str, typer.Argument(help="directory, file:///… or s3://bucket/prefix?…; several backups share one")]
Name = Annotated[str | None, typer.Option(help="name of the backup [the newest]")]
_OTHERS: Final = 0o007
_TAKE_S: Final = 3600.0
_FILE_S: Final = 120.0


@snapshot.command()
def save(
    place: Place,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    name: Annotated[str | None, typer.Option(help="name of the backup [time and commit number]")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Back up everything acknowledged until now while the cluster runs; only files that the place lacks travel."""
    import msgspec

    from oncegate.gateway.backup.manifest import Manifest, decode, encode
    from oncegate.gateway.backup.shelf import Shelf, name_of

    with told(), _closed_to_others():
        shelf = Shelf(place)
        if name is not None:
            shelf.check_free(name)  # before hours of reading, not after
        taken = ask("POST", endpoint, "/v1/snapshots", None, _TAKE_S)
        path = f"/v1/snapshots/{taken['id']}"
        try:
            # What a node says goes through the checks of what a shelf says: its paths name files below.
            manifest = decode(encode(msgspec.convert(taken["manifest"], Manifest)), endpoint)
            new = [file for file in manifest.files if not shelf.has(file)]
            each = {file.sha256: file for file in new}.values()
            with progress("saving", Unit.BYTES, sum(file.size_bytes for file in each)) as advance:
                for file in each:
                    shelf.add(file, _downloaded(f"{endpoint}{path}/files/{file.sha256}"))
                    advance(file.size_bytes)
            chosen = name or name_of(manifest)
            shelf.finish(chosen, manifest)
        finally:
            with contextlib.suppress(typer.Exit):  # the node gives it back by itself, later
                ask("DELETE", endpoint, path)
    new_bytes = sum(file.size_bytes for file in new)
    found = {"name": chosen, "commit": manifest.commit, "files": len(manifest.files)}
    if as_json(output, {**found, "size_bytes": manifest.size_bytes, "new_bytes": new_bytes}):
        return
    typer.echo(chosen)
    sizes = f"{_size(manifest.size_bytes)}, {_size(new_bytes)} of it new"
    typer.echo(f"up to commit {manifest.commit}: {len(manifest.files)} files, {sizes}", err=True)


@snapshot.command()
def inspect(
    place: Place,
    name: Name = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="read every file and every block, and restore it into a temporary folder")
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """Show the backups of a place and what one of them holds."""
    from oncegate.gateway.backup.restoring import BackupOrigin, NewCluster, restore
    from oncegate.gateway.backup.shelf import Shelf
    from oncegate.gateway.node.settings import MemberAddress

    with told(), _refused():
        shelf = Shelf(place)
        chosen, manifest = shelf.manifest(name)
        if verify:
            with tempfile.TemporaryDirectory(prefix="oncegate-rehearsal-") as folder:
                new = NewCluster(f"not {manifest.cluster}", MemberAddress("rehearsal", "127.0.0.1", 1, 2))
                with progress("rehearsing", Unit.BYTES, manifest.size_bytes) as advance:
                    restore(BackupOrigin(shelf, manifest, advance), Path(folder, "node"), new)
    _print(shelf, chosen, manifest, output, verified=verify)


@snapshot.command()
def prune(
    place: Place,
    keep: Annotated[int, typer.Option(min=1, help="how many of the newest backups stay")],
    output: Format = Output.TABLE,
) -> None:
    """Delete older backups, and the files that none of the others names and that are a day old."""
    from oncegate.gateway.backup.shelf import Shelf

    with told():
        gone, files = Shelf(place).prune(keep, datetime.now(UTC) - timedelta(days=1))
    if not as_json(output, {"backups": gone, "files": files}):
        typer.echo(f"{len(gone)} backups and {files} files are deleted")


@snapshot.command("restore")
def restore_backup(
    source: Annotated[
        str, typer.Argument(help="place of backups; with --force-new-cluster a stopped node's data directory")
    ],
    data_dir: Annotated[Path, typer.Option(help="data directory of the new node; made, and must be empty")],
    cluster: Annotated[str, typer.Option(help="id of the new cluster, another than the old one's")],
    member: Annotated[str, typer.Option(help="the new cluster's only node, as id=host:http_port:peer_port")],
    name: Name = None,
    force_new_cluster: Annotated[
        bool, typer.Option("--force-new-cluster", help="a majority is lost: go on with what this node has")
    ] = False,
    yes: Yes = False,
) -> None:
    """Begin a new cluster, of one node, with a backup or with what a lost cluster's survivor has; add members then.

    Sessions of the old cluster end: what its clients send again is refused, its outcome unknown, and never executed.
    """
    from oncegate.gateway.backup.restoring import BackupOrigin, NewCluster, restore
    from oncegate.gateway.backup.shelf import Shelf
    from oncegate.gateway.backup.survivor import SurvivorOrigin
    from oncegate.gateway.node.settings import MemberAddress

    if force_new_cluster and name is not None:
        raise failed("--name names a backup, and --force-new-cluster takes what a node has: give one of the two", 2)
    with checked():
        new = NewCluster(cluster, MemberAddress.parse(member))
    with told(), _refused():
        if force_new_cluster:
            with SurvivorOrigin(Path(source)) as origin:
                typer.echo("\n".join(_warning(origin.known)), err=True)
                confirm("Begin a new cluster with what this node has?", yes=yes)
                with progress("restoring", Unit.BYTES):
                    made = restore(origin, data_dir, new)
        else:
            shelf = Shelf(source)
            _, manifest = shelf.manifest(name)
            with progress("restoring", Unit.BYTES, manifest.size_bytes) as advance:
                made = restore(BackupOrigin(shelf, manifest, advance), data_dir, new)
    _write_down("snapshot.force-new-cluster" if force_new_cluster else "snapshot.restore", data_dir, new.node, cluster)
    _tell(made, data_dir, cluster, new.node)


def _write_down(act: str, data_dir: Path, node: MemberAddress, cluster: str) -> None:
    """Begin the audit log of the new node with who made it."""
    import getpass

    from oncegate.gateway.observability.audit import DONE, Act, AuditLog, Who

    audit = AuditLog(data_dir, node.node_id)
    audit.record_now(Act(act, DONE, Who(user=getpass.getuser()), {"cluster": cluster, "member": str(node)}))
    audit.close()


def _warning(known: Known) -> list[str]:
    """Say in numbers what is kept and what may be lost."""
    others = ", ".join(node for node in known.members if node != known.node) or "others"
    entries = known.last - known.committed
    return [
        f"node {known.node} of {', '.join(known.members)}: its log ends with entry {known.last} of term {known.term}; "
        f"it knows entries up to {known.committed} to be committed",
        f"kept, although nobody here knows that they were committed: {entries} entries, {known.uncertain} operations",
        f"lost: whatever {others} acknowledged behind entry {known.last} without this node. How much "
        "that is cannot be known here: if another node is left, compare its numbers, and take the one whose "
        "last entry has the higher term, then the higher number",
        "stop every node of the old cluster for good first: two clusters that both answer would diverge",
    ]


def _tell(made: Restored, data_dir: Path, cluster: str, node: MemberAddress) -> None:
    typer.echo(f"cluster {made.identity} begins at commit {made.commit}")
    typer.echo(
        f"{made.fenced.sessions} sessions of the old cluster are over, {made.fenced.keys} idempotency keys are kept",
        err=True,
    )
    if made.missing:
        some = ", ".join(f"{one.flow}/{one.number}" for one in made.missing[:5])
        typer.echo(f"{len(made.missing)} batches are missing, of which the state knows: {some} …", err=True)
    typer.echo(
        "Start it, with the tokens, certificates and secret of before, then add members:\n"
        f"  oncegate serve --cluster {cluster} --node {node.node_id} --data-dir {data_dir} --member {node}\n"
        "  oncegate member add …\n"
        "Each store of derived rows is the old cluster's still; this makes it the new one's:\n"
        "  oncegate store adopt URL",
        err=True,
    )


def _downloaded(url: str) -> bytes:
    try:
        return download(url, _FILE_S)
    except RequestRefused as refusal:
        raise failed(refusal, 1) from None
    except Unreachable as fault:
        raise failed(f"the node stopped answering: {fault}", 3) from None


@contextlib.contextmanager
def _closed_to_others() -> Any:
    """Write files that others on this machine cannot read: a backup has what data directories are closed for."""
    before = os.umask(_OTHERS)
    os.umask(before | _OTHERS)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _refused() -> Any:
    """Print what a disk, a format or a bound refuses, and exit with 1."""
    from oncegate.consensus.errors import ConsensusError
    from oncegate.rifl.errors import OncegateError

    try:
        yield
    except (ConsensusError, OncegateError, OSError) as fault:
        raise failed(fault, 1) from None


def _print(shelf: Shelf, chosen: str, manifest: Manifest, output: Output, *, verified: bool) -> None:
    found: dict[str, Any] = {
        "backups": shelf.names(),
        "name": chosen,
        "cluster": manifest.cluster,
        "identity": manifest.identity,
        "node": manifest.node,
        "made": datetime.fromtimestamp(manifest.made_ms / 1000, UTC).isoformat(timespec="seconds"),
        "built_by": manifest.built_by,
        "entry": manifest.point.index,
        "term": manifest.point.term,
        "commit": manifest.commit,
        "sessions": manifest.sessions,
        "keys": manifest.keys,
        "rows": manifest.rows,
        "flows": {name: f"{batches.first}..{batches.last}" for name, batches in manifest.flows.items()},
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "verified": verified,
    }
    if as_json(output, found):
        return
    shown = {**found, "backups": "\n".join(found["backups"])}
    for what in ("rows", "flows"):
        shown[what] = "\n".join(f"{name}: {value}" for name, value in found[what].items())
    show(("what", "value"), ((what, str(value)) for what, value in shown.items()))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
