"""The cells of the documentation run as they stand: each page in a kernel of its own, on the model it names.

A fence without a language holds cells of a notebook when it, or another of the same page before it, has a magic; shell
commands and pictures of folders do not. What a page's other (Python) fences say is run by ``test_docs_reference``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_rig import Kernel

from sgnb.magic_options import COMMANDS, cell_parser

ROOT = Path(__file__).parents[2]
LAUNCH = 240.0
"""Seconds for an engine that loads the real model on a busy machine."""
PAGES = ("README.md", "docs/quickstart.md", "docs/recording.md", "docs/reference.md")
HELP = ("sgl_line", "sgl_cell")


def fences(page: str) -> list[tuple[str, str]]:
    """Language and text of each fence."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def cells(page: str) -> list[str]:
    """The notebook cells of a page, in order."""
    plain = [text for language, text in fences(page) if not language]
    first = next((number for number, text in enumerate(plain) if text.startswith("%")), len(plain))
    return [text for text in plain[first:] if "├" not in text and not text.startswith("sgnb/")]


def test_no_page_with_cells_is_left_out() -> None:
    pages = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
        if path.name != "errors.md"  # a picture of each error, carets and all, made by a test
    ]
    assert [page for page in pages if any(text.startswith("%") for _, text in fences(page))] == list(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_cells_of_a_page_run(page: str, make_kernel, tmp_path) -> None:
    kernel: Kernel = make_kernel(SGNB_DISPLAY="static")
    kernel.ok(f"%cd -q {tmp_path}")
    texts = cells(page)
    if not any("%load_ext" in text for text in texts):
        texts = ["%load_ext sgnb\n%sgl launch --runner stub --name docs-cells", *texts]
    for text in texts:
        result = kernel.ok(text, LAUNCH)
        if text.startswith("%%sgl"):
            assert result.plain.strip(), text
    python = [text for language, text in fences(page) if language == "python"]
    if page == "README.md":  # it goes on from the cells before it, and its model knows the answer
        assert "is London" in kernel.ok(python[-1]).stdout
    kernel.ok("%sgl stop")


@pytest.mark.parametrize("magic", HELP)
def test_the_examples_of_the_help_run(shared: Kernel, magic: str) -> None:
    shared.ok("use_mock('fine')\nquestion = 'Why?'")
    lines = shared.value(f"get_ipython().magics_manager.registry['SglMagics'].{magic}.__doc__").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.strip() == "::")
    examples = re.split(r"\n\s*\n", "\n".join(line[12:] for line in lines[begin + 1 :]).strip())
    assert len(examples) >= (1 if magic == "sgl_line" else 2)
    for example in examples:
        if magic == "sgl_cell":
            shared.ok(example)
        else:  # engines are started by the pages; here only that the lines are legal
            for line in example.splitlines():
                assert line.split()[:1] == ["%sgl"] and line.split()[1] in COMMANDS


def test_the_reference_has_every_option_and_command() -> None:
    section = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    section = section.partition("## Cells")[2].partition("\n## ")[0]
    flags = {action.option_strings[0] for action in cell_parser()._actions}
    assert flags - set(re.findall(r"`(-{1,2}[\w-]+)", section)) == set()
    named = set(re.findall(r"`(\w+)`", section.partition("`%sgl` commands:")[2]))
    assert set(COMMANDS) - named == set()
