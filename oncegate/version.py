"""The version of this code, and where it was installed from, for whoever has to name them.

The build reads the version from here too: it stands nowhere else. It travels with the code where there is no
installation: to executors of Spark in a zip, to a node of another build.
"""

__version__ = "0.1.0"


def installing(*extras: str) -> str:
    """Return the command that installs extras beside what is installed, from where that came: it is in no index.

    For a checkout, a wheel or an address: these; where nothing says so, the name alone.
    """
    # Imported by whoever lacks something, and by nobody else.
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    wanted = f"[{','.join(extras)}]"
    try:
        origin = json.loads(distribution("oncegate").read_text("direct_url.json") or "{}")
        url = str(origin.get("url", ""))
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        vcs = origin.get("vcs_info", {})
    except (PackageNotFoundError, ValueError, AttributeError):
        url, editable, vcs = "", "", {}
    named = f"oncegate{wanted}"
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        if Path(path).exists():
            named = f"{path}{wanted}"
        else:
            editable = ""
    elif url:
        named += f" @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if {"vcs", "commit_id"} <= set(vcs) else f" @ {url}"
    return f"pip install {editable}{shlex.quote(named)}"
