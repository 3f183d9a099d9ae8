"""SGLang's own front end, loaded beside sgnb: package ``peer_sglang``, with a fake model behind it.

Its files are read from where ``get_sglang.py`` put them and compiled with ``sglang`` renamed, so that both front ends live
in one process. What its interpreter needs from heavy modules is stubbed here. A missing wheel is an error, never a skip.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import traceback
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = Path(__file__).parents[2] / ".peer"
NAME = "peer_sglang"


def peer_home() -> Path:
    """Where SGLang's files are; raises FileNotFoundError with the command that gets them."""
    home = Path(os.environ.get("SGNB_PEER", HOME))
    if not (home / "sglang/test/test_programs.py").exists():
        raise FileNotFoundError(
            f"SGLang's front end is not in {home}: run `make peer`, or "
            f"`python tests/peer/get_sglang.py {home}`"
        )
    return home


def load_file(path: Path, name: str, replace: str | None = None) -> ModuleType:
    """A Python file as a module; ``sglang`` is renamed to ``replace`` in its imports."""
    if replace is None:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    module = ModuleType(name)
    module.__file__ = str(path)
    exec(_code(path, replace), module.__dict__)
    return module


def _code(path: Path, name: str) -> Any:
    text = path.read_text(encoding="utf-8")
    text = text.replace("from sglang", f"from {name}").replace("import sglang", f"import {name}")
    return compile(text, str(path), "exec", dont_inherit=True)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(NAME + "."):
            return None
        file = peer_home() / "sglang" / Path(*name.split(".")[1:])
        if file.is_dir():
            return ModuleSpec(name, self, is_package=True)
        file = file.with_suffix(".py")
        return ModuleSpec(name, self, origin=str(file)) if file.exists() else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and spec.origin is not None:
            exec(_code(Path(spec.origin), NAME), module.__dict__)


def _no_media(*_: object) -> str:
    raise RuntimeError("no image or video here")


def load_peer() -> ModuleType:
    """The package: its language's names, as ``import sglang`` gives them."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    peer_home()
    root, utils = ModuleType(NAME), ModuleType(f"{NAME}.utils")
    root.__path__ = []
    utils.encode_image_base64 = utils.encode_video_base64 = _no_media  # type: ignore[attr-defined]
    utils.get_exception_traceback = traceback.format_exc  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _Finder())
    sys.modules |= {NAME: root, utils.__name__: utils}
    for module in ("api", "choices", "global_config"):
        names = vars(importlib.import_module(f"{NAME}.lang.{module}"))
        vars(root).update({key: value for key, value in names.items() if not key.startswith("_")})
    return root


def peer_module(name: str) -> ModuleType:
    """A module of SGLang's, for example ``lang.interpreter``."""
    load_peer()
    return importlib.import_module(f"{NAME}.{name}")


def peer_function(path: Path, name: str) -> Any:
    """One function of a file that cannot be imported without a web client; it must use nothing of its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    names: dict[str, Any] = {}
    exec(compile(tree, str(path), "exec"), names)
    return names[name]
