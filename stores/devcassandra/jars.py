"""Cassandra's jars: fetched once a user, every one checked against its SHA-256 in the lock file.

Owns: the lock file, the cache, and Ivy, which is among pyspark's jars, so that neither Maven nor an installation is
needed. Where the jars come from is Ivy's default, or the user's own mirror: `ONCEGATE_MAVEN_MIRROR`, else the mirror
of central in `~/.m2/settings.xml`. Must not know how a node runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from oncegate.stores.errors import StoreCode, StoreError

VERSION: Final = "5.0.9"
"""Of Cassandra."""

_JAVA_LEAST: Final = 17
_FETCH_S_MAX: Final = 900


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.artifact}-{self.version}{'-' if self.classifier else ''}{self.classifier}.jar"


def cache_directory() -> Path:
    """Return the user's cache of this project: jars, the class-data archive of Spark's JVM; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncegate"


def java_program() -> str | None:
    """Return the Java of ``JAVA_HOME``, else that of the path, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None)


def java() -> tuple[str, int]:
    """Return the Java to run and its major version.

    Raises:
        StoreError: CLUSTER_FAILED, when there is none, or none that is new enough.
    """
    program = java_program()
    if program is None:
        raise StoreError(StoreCode.CLUSTER_FAILED, f"no Java: install one, {_JAVA_LEAST} or later, or set JAVA_HOME")
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    major = int(found[1]) if found else 0
    if major < _JAVA_LEAST:
        raise StoreError(StoreCode.CLUSTER_FAILED, f"{program} is version {major}; {_JAVA_LEAST} or later is needed")
    return program, major


def library() -> Path:
    """Return the directory of all jars; it may not exist yet."""
    return cache_directory() / f"cassandra-{VERSION}"


def fetched() -> bool:
    """Whether all jars are there, and have been checked."""
    return (library() / ".verified").exists()


def fetch() -> Path:
    """Return the directory of all jars, fetched if they are not there yet; several processes may call at once.

    Raises:
        StoreError: CLUSTER_FAILED, when a jar cannot be had or has another hash.
    """
    directory = library()
    if fetched():
        return directory
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f".cassandra-{VERSION}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not fetched():
            with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=".fetch-") as work:
                _retrieve(Path(work), wanted := locked())
                _check(Path(work, "jars"), wanted)
                shutil.rmtree(directory, ignore_errors=True)
                Path(work, "jars").rename(directory)
            (directory / ".verified").touch()
    return directory


def locked() -> list[Jar]:
    """Return the jars of the lock file."""
    text = files(__package__).joinpath(f"data/cassandra-{VERSION}.lock").read_text()
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinates, digest = line.split()
            group, artifact, version, *classifier = coordinates.split(":")
            jars.append(Jar(group, artifact, version, classifier[0] if classifier else "", digest))
    return jars


def mirror() -> str | None:
    """Return the user's Maven mirror of central, if there is one."""
    if chosen := os.environ.get("ONCEGATE_MAVEN_MIRROR"):
        return chosen
    settings = Path.home() / ".m2" / "settings.xml"
    if settings.is_file():
        for element in ET.parse(settings).getroot().iter():  # noqa: S314 - the user's own file
            if element.tag.rpartition("}")[2] == "mirror":
                fields = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in element}
                covered = {part.strip() for part in fields.get("mirrorOf", "").split(",")}
                if fields.get("url") and "!central" not in covered and covered & {"*", "central", "external:*"}:
                    return fields["url"]
    return None


def _retrieve(work: Path, jars: list[Jar]) -> None:
    (work / "ivy.xml").write_text(_module(jars))
    (work / "settings.xml").write_text(_settings(work / "cache"))
    command = [java()[0], "-cp", str(_ivy()), "org.apache.ivy.Main", "-settings", str(work / "settings.xml")]
    command += ["-ivy", str(work / "ivy.xml"), "-confs", "default"]
    command += ["-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_S_MAX, check=False
    )
    if ran.returncode != 0:
        raise StoreError(
            StoreCode.CLUSTER_FAILED, f"Ivy could not fetch the jars: {ran.stdout[-2000:]}{ran.stderr[-500:]}"
        )


def _check(directory: Path, jars: list[Jar]) -> None:
    names = {jar.file for jar in jars}
    for file in directory.iterdir():
        if file.name not in names:
            file.unlink()
    for jar in jars:
        file = directory / jar.file
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != jar.sha256:
            raise StoreError(StoreCode.CLUSTER_FAILED, f"{jar.file} is missing or altered")


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise StoreError(StoreCode.CLUSTER_FAILED, "Ivy is among pyspark's jars: install pyspark")


def _module(jars: list[Jar]) -> str:
    """The ivy.xml: each artifact by name, none transitive, since Ivy ignores a parent's exclusions."""
    artifacts: dict[tuple[str, str, str], list[str]] = {}
    for jar in jars:
        artifacts.setdefault((jar.group, jar.artifact, jar.version), []).append(jar.classifier)
    lines = ['<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">']
    lines += ['<info organisation="oncegate" module="dev"/><configurations><conf name="default"/></configurations>']
    lines += ["<dependencies>"]
    for (group, artifact, version), classifiers in artifacts.items():
        about = f'org="{group}" name="{artifact}" rev="{version}"'
        lines.append(f'<dependency {about} transitive="false" conf="default->*">')
        for classifier in classifiers:
            extra = f' m:classifier="{classifier}"' if classifier else ""
            lines.append(f'<artifact name="{artifact}" type="jar" ext="jar"{extra}/>')
        lines.append("</dependency>")
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def _settings(kept: Path) -> str:
    chosen = mirror()
    root = f" root={quoteattr(chosen.rstrip('/') + '/')}" if chosen else ""
    return (
        f'<ivysettings><settings defaultResolver="m"/><caches defaultCacheDir={quoteattr(str(kept))}/>'
        f'<resolvers><ibiblio name="m" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>'
    )
