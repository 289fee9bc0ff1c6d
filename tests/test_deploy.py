"""What is deployed: files fit their schemas, and the settings in them start a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml  # type: ignore[import-untyped]

from oncegate import OncegateError, sync
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import ProcessCluster
from oncegate.gateway.local.waiting import wait_for

DEPLOY = Path(__file__).parents[1] / "deploy"
CLUSTER = DEPLOY / "kubernetes" / "cluster.yaml"
COMPOSE = DEPLOY / "container" / "compose.yaml"
UNIT = DEPLOY / "systemd" / "oncegate.service"


class Deployed(ProcessCluster):
    """Nodes as processes here, with the variables that a file gives them; their hosts and ports are loopback's."""

    def __init__(
        self, directory: Path, environments: Mapping[str, Mapping[str, str]], paths: Mapping[str, str]
    ) -> None:
        super().__init__(directory)
        ports = iter(free_ports(2 * len(environments)))
        self._at = {name: (next(ports), next(ports)) for name in environments}
        self._paths = {**paths, "/var/lib/oncegate": str(directory / "NODE")}
        self._environments = environments

    @property
    def ids(self) -> list[str]:
        return list(self._at)

    @property
    def ports(self) -> list[int]:
        return [http for http, _ in self._at.values()]

    def command(self, name: str) -> list[str]:
        variables = [f"{key}={self._here(value, name)}" for key, value in self._environments[name].items()]
        return ["env", *variables, sys.executable, "-m", "oncegate", "serve"]

    def _here(self, value: str, name: str) -> str:
        for there, here in self._paths.items():
            value = value.replace(there, here.replace("NODE", name))
        http, peer = self._at[name]
        value = value.replace("[::]:7400", f"127.0.0.1:{http}").replace("[::]:7401", f"127.0.0.1:{peer}")
        return re.sub(r"([\w-]+)=[\w.-]+:7400:7401", self._member, value)

    def _member(self, found: re.Match[str]) -> str:
        return "{}=127.0.0.1:{}:{}".format(found[1], *self._at[found[1]])


def served(cluster: Deployed, endpoints: list[str], **how: Any) -> None:
    """See that the nodes are one cluster that takes writes."""
    cluster.start()
    with sync.Client(endpoints, **how) as client:

        def members() -> bool:
            assert all(map(cluster.is_running, cluster.ids)), "".join(map(cluster.log_tail, cluster.ids))
            try:
                return {member.id for member in client.cluster(timeout_s=2).members} == set(cluster.ids)
            except OncegateError:
                return False

        wait_for(members, 60, "the nodes are a cluster")
        client.declare_table("seats")
        with client.session() as session:
            assert session.put("seats", "14C", "ann", if_absent=True).applied


def manifests() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(CLUSTER.read_text())}


@pytest.mark.parametrize("manifest", list(yaml.safe_load_all(CLUSTER.read_text())), ids=lambda one: str(one["kind"]))
def test_kubernetes_manifests_fit_the_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_kubernetes_manifests_fit_each_other() -> None:
    budget, stateful = manifests()["PodDisruptionBudget"]["spec"], manifests()["StatefulSet"]["spec"]
    headless = next(one for one in yaml.safe_load_all(CLUSTER.read_text()) if one["kind"] == "Service")
    labels = stateful["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == stateful["selector"]["matchLabels"] == labels
    assert headless["metadata"]["name"] == stateful["serviceName"]
    assert headless["spec"]["publishNotReadyAddresses"]
    assert stateful["replicas"] - budget["maxUnavailable"] > stateful["replicas"] / 2
    (container,) = stateful["template"]["spec"]["containers"]
    mounted = [volume["mountPath"] for volume in container["volumeMounts"]]
    for one in container["env"]:
        if str(one.get("value", "")).startswith("/"):
            assert any(one["value"].startswith(path) for path in mounted), one


@pytest.mark.faults
def test_variables_of_the_stateful_set_start_a_cluster_with_tls_and_tokens(tmp_path: Path) -> None:
    stateful = manifests()["StatefulSet"]["spec"]
    (container,) = stateful["template"]["spec"]["containers"]
    names = [f"oncegate-{number}" for number in range(stateful["replicas"])]
    given = {one["name"]: one.get("value") for one in container["env"]}
    environments = {
        name: {key: (value or name).replace("$(ONCEGATE_NODE)", name) for key, value in given.items()} for name in names
    }
    peers, http = tmp_path / "peers", tmp_path / "http"
    for folder in (peers, http):
        folder.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(peers / "ca.pem")
    for name in names:
        _issue(
            authority.issue_cert(name, f"{name}.oncegate", "127.0.0.1"), peers / f"{name}.pem", peers / f"{name}.key"
        )
    _issue(authority.issue_cert("localhost", "127.0.0.1"), http / "tls.crt", http / "tls.key")
    asked = [sys.executable, "-m", "oncegate", "token", "ann", "--tenant", "ann"]
    scopes = [flag for scope in ("admin", "read", "write", "flows") for flag in ("--scope", scope)]
    made = subprocess.run([*asked, *scopes], capture_output=True, text=True, check=True)
    tokens = http / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(made.stdout)
    token = made.stderr.split()[-1]
    paths = {"/etc/oncegate/peers": str(peers), "/etc/oncegate/http": str(http)}
    with Deployed(tmp_path / "nodes", environments, paths) as cluster:
        endpoints = [f"https://127.0.0.1:{port}" for port in cluster.ports]
        served(cluster, endpoints, token=token, ca_file=peers / "ca.pem")


def _issue(issued: trustme.LeafCert, certificate: Path, key: Path) -> None:
    issued.cert_chain_pems[0].write_to_path(certificate)
    key.touch(0o600)
    issued.private_key_pem.write_to_path(key)


@pytest.mark.faults
def test_variables_of_the_compose_file_start_a_cluster(tmp_path: Path) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    secret = tmp_path / "peers"
    secret.touch(0o600)
    secret.write_text("0" * 32)
    environments = {
        name: {**one["environment"], "ONCEGATE_DATA_DIR": "/var/lib/oncegate"} for name, one in services.items()
    }
    assert all(one["volumes"] == [f"{name}:/var/lib/oncegate"] for name, one in services.items())
    with Deployed(tmp_path / "nodes", environments, {"/run/secrets": str(tmp_path)}) as cluster:
        served(cluster, [f"http://127.0.0.1:{port}" for port in cluster.ports])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_unit_is_right_and_hardened() -> None:
    asked = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT)]
    exposed = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert exposed.returncode == 0, exposed.stdout.splitlines()[-1:]
    verified = subprocess.run(["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False)
    others = [line for line in verified.stderr.splitlines() if "oncegate.service" in line and "executable" not in line]
    assert not others


def test_container_runs_as_nobody_in_particular_and_as_the_stateful_set_says() -> None:
    dockerfile = (DEPLOY / "container" / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+)$", dockerfile, re.MULTILINE)
    assert user is not None
    assert int(user[1]) == manifests()["StatefulSet"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"--uid {user[1]}" in dockerfile
    assert {"EXPOSE 7400 7401", 'CMD ["serve"]'} <= set(dockerfile.splitlines())
