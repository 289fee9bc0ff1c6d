from __future__ import annotations

import logging
import subprocess
import sys
from importlib import resources

import oncegate.gateway.client


def test_public_exports() -> None:
    assert sorted(oncegate.gateway.client.__all__) == [
        "Client",
        "ClusterInfo",
        "Code",
        "Consumer",
        "DeadlineExceeded",
        "FlowInfo",
        "MalformedAnswer",
        "ManyResult",
        "Member",
        "OncegateError",
        "OperationFailed",
        "OutboxDamaged",
        "OutboxEntry",
        "OutboxUnresolved",
        "Outcome",
        "OutcomeUnknown",
        "Page",
        "PartialFailure",
        "Recovered",
        "RequestId",
        "RequestState",
        "Resolution",
        "Row",
        "RowsPart",
        "Session",
        "TableInfo",
        "Tuning",
        "WriteResult",
    ]
    for name in oncegate.gateway.client.__all__:
        assert hasattr(oncegate.gateway.client, name)


def test_package_is_typed_and_quiet() -> None:
    assert resources.files("oncegate").joinpath("py.typed").is_file()
    handlers = logging.getLogger("oncegate.client").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)


def test_importing_the_sdk_imports_nothing_of_the_server() -> None:
    code = "import oncegate.gateway.client, sys; print(*sorted(m for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    allowed = ("gateway", "oncegate.gateway.wire")
    ours = [m for m in loaded if m.split(".")[0] in ("gateway", "consensus", "flows", "spark_sink")]
    assert [m for m in ours if m not in allowed and not m.startswith("oncegate.gateway.client")] == []
    assert not {"pyarrow", "pysyncobj", "typer"} & set(loaded)
