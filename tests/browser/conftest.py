"""A real JupyterLab and a real Chromium for the browser tests.

The server has folders of its own for home, settings, data, runtime files and workspaces; only the cache of pulled
models is shared. Tests wait on attributes of the page, never on time. ``Page`` refuses to end quietly: errors on the
console and requests that leave the server's origin fail the test that saw them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    sync_playwright,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "test-results"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
# Errors of JupyterLab itself, each by its exact text.
KNOWN_ERRORS = frozenset(
    {
        # Its debugger's state is asked for while the kernel restarts.
        "Could not restore the debugger state: Canceled future for debug_request message before replies were done",
        # Its comms were about to get subshells when the kernel was restarted.
        "Error: Canceled future for create_subshell_request message before replies were done",
    }
)
LATE_MESSAGE = "Comm not found for comm id "
START_SECONDS = 90
WAIT_MS = 90_000


class LabServer:
    """One ``jupyter lab`` process on a free local port, with notebooks in ``folder``. ``base``: its base URL's path."""

    def __init__(self, home: Path, base: str = "") -> None:
        self.base = base
        self.home = home
        self.folder = home / "work"
        self.folder.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        self.log = home / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}{base}"
        overrides = home / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir(parents=True)
        overrides.write_text(json.dumps(SETTINGS))
        # The side panel of this checkout, also where the environment's link leads to another one.
        extensions = home / "share" / "labextensions"
        extensions.mkdir(parents=True)
        (extensions / "sgnb").symlink_to(ROOT / "sgnb" / "labextension")
        self._process = self._spawn()
        self._wait_until_up()

    def _spawn(self) -> subprocess.Popen[bytes]:
        from sgnb.engine.model_store import cache_dir

        env = dict(os.environ)
        env.update(
            HOME=str(self.home),
            SGNB_CACHE=str(cache_dir().parent),
            JUPYTER_CONFIG_DIR=str(self.home / "config"),
            JUPYTER_DATA_DIR=str(self.home / "data"),
            JUPYTER_PATH=str(self.home / "share"),
            JUPYTER_RUNTIME_DIR=str(self.home / "run"),
            IPYTHONDIR=str(self.home / "ipython"),
            JUPYTER_NO_CONFIG="",
            PYDEVD_DISABLE_FILE_VALIDATION="1",
        )
        for name in ("SGNB_DISPLAY", "SGNB_DETERMINISTIC"):
            env.pop(name, None)
        arguments = [
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.folder}",
            f"--ServerApp.base_url={self.base}/",
            f"--LabApp.workspaces_dir={self.home / 'workspaces'}",
            "--LabApp.expose_app_in_browser=True",
        ]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyter", "lab", *arguments],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                self.request("api/status")
                return
            except OSError:
                time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start in {START_SECONDS} s:\n{self.log.read_text()[-4000:]}")

    def request(self, path: str, method: str = "GET", body: object = None) -> bytes:
        """One call of the server's API; returns the body."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.origin}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def set_comms(self, mode: str) -> None:
        """Choose how JupyterLab runs comms: ``disabled`` (on the main shell), ``perComm`` or ``perCommTarget``."""
        raw = json.dumps({"commsOverSubshells": mode})
        plugin = "@jupyterlab/apputils-extension:kernels-settings"
        self.request(f"lab/api/settings/{plugin}", method="PUT", body={"raw": raw})

    def end_kernels(self) -> None:
        """Shut every kernel down, so that no engine of one test is seen by the next."""
        for kernel in json.loads(self.request("api/kernels")):
            self.request(f"api/kernels/{kernel['id']}", method="DELETE")

    def stop(self) -> None:
        """End the server and with it its kernels; kill it after 15 s."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(15)


class LabPage:
    """A page of JupyterLab, with the moves the tests make and a record of what went wrong on it."""

    def __init__(self, server: LabServer, context: BrowserContext) -> None:
        self.server = server
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and message.text not in KNOWN_ERRORS:
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        local = parts.netloc == f"127.0.0.1:{self.server.port}"
        if not local and parts.scheme not in ("data", "blob"):
            self.strangers.append(request.url)

    def open(self, notebook: str = "") -> None:
        """Load JupyterLab in a workspace of its own, with ``notebook`` in front when one is named."""
        where = f"lab/workspaces/w{secrets.token_hex(4)}" + (f"/tree/{notebook}" if notebook else "")
        self.page.goto(f"{self.server.origin}/{where}?token={self.server.token}")
        self.ready(notebook)

    def ready(self, notebook: str = "") -> None:
        """Wait until the shell stands, and the notebook's first cell and an idle kernel with it."""
        self.page.locator("#jp-main-dock-panel").wait_for()
        self.page.wait_for_function("() => window.jupyterapp !== undefined")
        self.page.evaluate("() => window.jupyterapp.restored.then(() => null)")
        if notebook:
            self.cell(0).wait_for()
            self.page.evaluate(
                """async () => {
                  const context = window.jupyterapp.shell.currentWidget.sessionContext;
                  await context.ready;
                  await context.session.kernel.info;
                }"""
            )

    def open_panel(self) -> Locator:
        """Show the side panel and return its content."""
        if not self.panel.is_visible():
            self.page.locator('.lm-TabBar-tab[data-id="sgnb-panel"]').click()
        self.panel.wait_for()
        return self.panel

    @property
    def panel(self) -> Locator:
        return self.page.locator("#sgnb-panel .sgnb-Panel-content")

    def panel_state(self, *states: str) -> Locator:
        """Wait until the panel is in one of ``states``; return its content."""
        selector = ", ".join(f'#sgnb-panel .sgnb-Panel-content[data-state="{state}"]' for state in states)
        found = self.page.locator(selector)
        found.wait_for()
        return found

    def cell(self, index: int) -> Locator:
        """A cell by its place in the notebook."""
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')

    def front(self) -> None:
        """Bring the notebook to the front: cells are run in JupyterLab's current widget."""
        self.page.evaluate(
            """() => {
              const { shell } = window.jupyterapp;
              shell.activateById([...shell.widgets('main')].find(one => one.hasClass('jp-NotebookPanel')).id);
            }"""
        )
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget?.hasClass('jp-NotebookPanel')"
        )

    def run_cell(self, index: int) -> None:
        """Run one cell by JupyterLab's own command; returns at once, see ``cell_done``."""
        self.page.evaluate(
            """index => {
              const notebook = window.jupyterapp.shell.currentWidget;
              notebook.content.activeCellIndex = index;
              void window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            index,
        )

    def cell_done(self, index: int) -> None:
        """Wait until the cell's prompt holds a number."""
        self.cell(index).locator(".jp-InputPrompt", has_text="[").filter(has_not_text="[*]").filter(
            has_not_text="[ ]"
        ).first.wait_for()

    def shot(self, name: str) -> Path:
        """Keep a picture of the page under ``test-results``."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def forget_late_messages(self) -> None:
        """After a restart: what the old kernel had sent may come when JupyterLab has already dropped its comms."""
        self.errors = [error for error in self.errors if not error.startswith(LATE_MESSAGE)]

    def check_clean(self) -> None:
        """Nothing went to the console as an error, nothing left the server's origin."""
        assert not self.errors, "errors on the console:\n" + "\n".join(self.errors)
        assert not self.strangers, "requests off the origin:\n" + "\n".join(self.strangers)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path. Its absence is an error, not a reason to skip."""
    path = os.environ.get("SGNB_CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.fail(
            "No chromium found. `make test` installs Debian's; elsewhere set SGNB_CHROMIUM to its path."
        )
    return path


@pytest.fixture(scope="session")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS, headless=True)
        yield started
        started.close()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"))
    yield server
    server.stop()


@pytest.fixture
def lab(lab_server: LabServer, browser: Browser, request: pytest.FixtureRequest) -> Iterator[LabPage]:
    """A fresh page in a fresh browser profile; a picture is kept when the test fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    page = LabPage(lab_server, context)
    yield page
    with contextlib.suppress(Exception):  # the picture only helps to understand a failure
        page.shot(f"last-{request.node.name}")
    context.close()
    lab_server.end_kernels()
