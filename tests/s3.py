"""An S3-like store on loopback, for what keeps files behind a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def s3_like(bucket: str) -> Iterator[str]:
    """Give the URL of an empty place in a bucket of this name."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        how = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
        yield f"s3://user:secret@{bucket}/place?{how}"
    finally:
        server.stop()
