"""TLS of the HTTP side, and where a node may listen without it.

Owns: the server's TLS context and the rule that guards addresses which others can reach.
"""

from __future__ import annotations

import ssl

from oncegate.consensus.config import is_loopback
from oncegate.gateway.node.settings import Settings


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the settings, None without certificate.

    Raises:
        ValueError: certificate and key do not belong together, or a file holds neither.
        OSError: a file cannot be read.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, settings)
    return context


def load(context: ssl.SSLContext, settings: Settings) -> None:
    """Load certificate and key; connections made from now on use them."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as fault:
        raise ValueError(f"{settings.tls_certificate} and {settings.tls_key}: {fault.reason or fault}") from None


def check_exposure(settings: Settings) -> None:
    """Refuse to serve HTTP on an address that others can reach without tokens or without TLS.

    Raises:
        ValueError: the address is no loopback address, TLS or tokens are missing, and it is not allowed explicitly.
    """
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ValueError("tls_certificate and tls_key go together")
    host = settings.address.host
    if settings.insecure_http or is_loopback(host):
        return
    missing = [
        name for name, path in (("tls_certificate", settings.tls_certificate), ("tokens_file", settings.tokens_file))
        if path is None
    ]  # fmt: skip
    if missing:
        raise ValueError(f"{host} is not a loopback address: {' and '.join(missing)} or insecure_http is required")
