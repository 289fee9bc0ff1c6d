"""What the URL of a Cassandra store says: places, keyspace, and options, each checked by itself.

Owns: names, bounds and defaults of the options. Secrets stand in files or environment variables and are read when a
connection is made, so the URL may be logged. Must not connect. Read next: :mod:`oncegate.stores.cassandra.connection`.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import parse_qs

from cassandra import ConsistencyLevel

from oncegate.stores.errors import StoreCode, StoreError

PORT_DEFAULT: Final = 9042
_FORM: Final = re.compile(r"cassandra://(?P<places>[^/?#]*)/(?P<keyspace>[^/?#]*)/?(\?(?P<query>[^#]*))?")
_PLACE: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?"
)
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_CENTRE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEVELS: Final = ("ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraOptions:
    """Where a keyspace is, and how it is used; all times in seconds.

    Attributes:
        places: contact points, host and port of each; the others are found through them, at ports of their own.
        keyspace: lower-case identifier, at most 48 characters.
        replication: copies in each data centre when the keyspace is created; empty: in the local one, one a node, at
            most 3.
        replicas: copies in the local data centre, in place of `replication`; 0: as above.
        data_centre: the local one; None: that of the contact point that answers first.
        write_level, read_level: consistency levels, by the driver's numbers.
        user: logs in with the password of ``password_file``, or of the variable ``password_env``; None: no log-in.
        tls: encrypts, and checks the server's certificate against ``ca_file``, or the system's authorities.
        tls_name: the name that every server's certificate bears; None: the address it is reached at.
        host_check: whether a certificate must bear that name.
        cert_file, key_file: the client's own certificate and its unencrypted key.
        in_flight: batches under way at once. batch_bytes: upper bound of a batch; 0: what the server allows.
        retry_s: how long one call is tried again. request_timeout_s: of one request; scans have four times as much.
        connect_timeout_s: of one connection.
        compression: whether what travels is compressed, with LZ4.
    """

    places: tuple[tuple[str, int], ...]
    keyspace: str
    replication: Mapping[str, int]
    replicas: int
    data_centre: str | None
    write_level: int
    read_level: int
    user: str | None
    password_file: Path | None
    password_env: str | None
    tls: bool
    ca_file: Path | None
    tls_name: str | None
    host_check: bool
    cert_file: Path | None
    key_file: Path | None
    in_flight: int
    batch_bytes: int
    retry_s: int
    request_timeout_s: int
    connect_timeout_s: int
    compression: bool

    @classmethod
    def parse(cls, url: str) -> CassandraOptions:
        """Return what ``url`` says; raises BAD_OPTION, which names the option and repeats no value."""
        form = _FORM.fullmatch(url)
        if form is None or "@" in form["places"]:
            raise StoreError(
                StoreCode.BAD_OPTION,
                "use cassandra://host[:port][,host…]/keyspace?option=value; a user is the option user, a password "
                "stands in a file or a variable: password_file, password_env",
            )
        if _KEYSPACE.fullmatch(form["keyspace"]) is None:
            _refuse("keyspace", "a lower-case identifier of at most 48 characters")
        given = _Given(form["query"] or "")
        replicas, replication = given.replication()
        tls_files = {name: given.path(name) for name in ("ca_file", "cert_file", "key_file")}
        found = cls(
            places=tuple(_place(place) for place in form["places"].split(",")),
            keyspace=form["keyspace"],
            replication=replication,
            replicas=replicas,
            data_centre=given.matching("data_centre", _CENTRE, "the name of a data centre"),
            write_level=given.level("write_consistency"),
            read_level=given.level("read_consistency", refused="EACH_QUORUM"),
            user=given.text("user"),
            password_file=given.path("password_file"),
            password_env=given.text("password_env"),
            tls=given.switch("tls", default=any(tls_files.values())),
            tls_name=given.text("tls_name"),
            host_check=given.switch("host_check", default=True),
            ca_file=tls_files["ca_file"],
            cert_file=tls_files["cert_file"],
            key_file=tls_files["key_file"],
            in_flight=given.integer("in_flight", 128, least=1, most=4096),
            batch_bytes=given.integer("batch_bytes", 0, least=0, most=16 * 2**20),
            retry_s=given.integer("retry_s", 120, least=0, most=86_400),
            request_timeout_s=given.integer("request_timeout_s", 15, least=1, most=3600),
            connect_timeout_s=given.integer("connect_timeout_s", 5, least=1, most=3600),
            compression=given.switch("compression", default=True),
        )
        given.refuse_rest()
        found._check_pairs()
        return found

    def password(self) -> str:
        """Return the password as it is now; raises BAD_OPTION without it in the text."""
        if self.password_env is not None:
            secret = os.environ.get(self.password_env)
            return secret if secret is not None else _refuse("password_env", "the name of a variable that is set")
        try:
            return Path(self.password_file or "").read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise _option("password_file", f"a file that can be read ({type(error).__name__})") from None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what connections are encrypted with, None for plain ones; raises BAD_OPTION."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise _option("ca_file", f"a PEM file of certificates ({type(error).__name__})") from None
        context.check_hostname = self.host_check
        if self.cert_file is not None:
            try:
                # Without a function of ours the library would ask the terminal for the key's password.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
            except OSError as error:
                what = f"PEM files of a certificate and its unencrypted key ({type(error).__name__})"
                raise _option("cert_file", what) from None
        return context

    def _check_pairs(self) -> None:
        passwords = [one for one in (self.password_file, self.password_env) if one is not None]
        if len(passwords) != (self.user is not None):
            _refuse("user", "given with one of password_file and password_env, or not at all")
        if self.cert_file is None and self.key_file is not None:
            _refuse("key_file", "given together with cert_file")
        if not self.tls and any((self.ca_file, self.cert_file, self.tls_name, not self.host_check)):
            _refuse("tls", "on where ca_file, cert_file, tls_name or host_check is given")


class _Given:
    """The options of a URL; each is taken once."""

    def __init__(self, query: str) -> None:
        try:
            self._left = parse_qs(query, strict_parsing=bool(query), keep_blank_values=True)
        except ValueError:
            raise StoreError(StoreCode.BAD_OPTION, "options of a store URL are name=value, joined by &") from None

    def text(self, name: str) -> str | None:
        values = self._left.pop(name, [])
        if len(values) > 1 or "" in values:
            _refuse(name, "given once, with a value")
        return values[0] if values else None

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return None if text is None else Path(text)

    def matching(self, name: str, form: re.Pattern[str], what: str) -> str | None:
        text = self.text(name)
        return text if text is None or form.fullmatch(text) else _refuse(name, what)

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.matching(name, re.compile("[0-9]{1,12}"), f"an integer, {least}..{most}")
        value = default if text is None else int(text)
        return value if least <= value <= most else _refuse(name, f"an integer, {least}..{most}")

    def switch(self, name: str, *, default: bool) -> bool:
        text = self.matching(name, re.compile("on|off"), "on or off")
        return default if text is None else text == "on"

    def level(self, name: str, refused: str = "") -> int:
        allowed = [level for level in _LEVELS if level != refused]
        text = self.text(name) or "LOCAL_QUORUM"
        return (
            int(getattr(ConsistencyLevel, text)) if text in allowed else _refuse(name, f"one of {', '.join(allowed)}")
        )

    def replication(self) -> tuple[int, Mapping[str, int]]:
        what = "a number of copies, 0..64, or centre:copies for each data centre, joined by commas"
        text = self.text("replication") or "0"
        copies: dict[str, int] = {}
        for part in text.split(","):
            centre, colon, number = part.rpartition(":")
            named = _CENTRE.fullmatch(centre) if colon else text == part
            if not named or not re.fullmatch("[0-9]{1,2}", number) or int(number) > 64 or centre in copies:
                _refuse("replication", what)
            copies[centre] = int(number)
        return (copies[""], {}) if "" in copies else (0, copies)

    def refuse_rest(self) -> None:
        if "password" in self._left:
            _refuse("password", "left out of the URL: use password_file or password_env")
        if self._left:
            _refuse(min(self._left)[:40], "an option of a Cassandra store")


def _place(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    port = int(found["port"] or PORT_DEFAULT) if found else 0
    if found is None or not 1 <= port <= 65_535:
        _refuse("hosts", "host, host:port, [IPv6] or [IPv6]:port, joined by commas")
    return found["ipv6"] or found["host"], port


def _option(name: str, what: str) -> StoreError:
    return StoreError(StoreCode.BAD_OPTION, f"{name} must be {what}")


def _refuse(name: str, what: str) -> NoReturn:
    raise _option(name, what)
