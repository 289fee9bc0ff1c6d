"""Models by name, and a user's own out of a file.

Owns: what ``--model`` takes: a name of :data:`oncegate.proof.lincheck.MODELS`, or ``FILE.py:Class``. The file is run,
as any script that its user names; nothing is looked up by import path, and nothing is evaluated but that file.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from oncegate.proof.lincheck import MODELS, Model, ModelError


def load_model(spec: str) -> Model:
    """Return the model that ``spec`` names.

    Raises:
        ModelError: there is no such model, file or class, or it is no model.
    """
    if spec in MODELS:
        return MODELS[spec]
    name, colon, cls = spec.rpartition(":")
    if not colon or not name.endswith(".py"):
        raise ModelError(f"no model {spec!r}; there are {', '.join(sorted(MODELS))}, or FILE.py:Class")
    path = Path(name)
    if not path.is_file():
        raise ModelError(f"there is no file {name}")
    module_spec = importlib.util.spec_from_file_location(f"oncegate_model_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ModelError(f"{name} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    found = getattr(module, cls, None)
    if not isinstance(found, type):
        raise ModelError(f"{name} has no class {cls}")
    model: Model = found()
    missing = [part for part in ("name", "partitioned", "initial", "step") if not hasattr(model, part)]
    if missing:
        raise ModelError(f"{cls} has no {', '.join(missing)}")
    return model
