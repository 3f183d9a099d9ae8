"""Text to ids, and the facts of a model's tokenizer that the engine needs.

Tokenizer process; ``load_tokenizer`` is called once at start, ``ModelTokenizer`` by the manager. No torch, no
transformers, no sessions. Two views of one vocabulary:

- *literal*: the tokenizer without every added token that is special, occurs in the chat template, or is not only
  whitespace. Nothing a user writes can form one of those.
- *parsing*: the same, after the text was split at those tokens here (as the ``tokenizers`` library splits them).

BOS and the dummy space that some tokenizers put before a text are taken out of the library's hands: they are added
once, at the start of a session, so that pieces of a text encoded one by one give the ids of the whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgnb.engine.model_executor.gguf import GGUFReader
from sgnb.engine.model_store import ModelPath, cache_dir
from sgnb.engine.tokenizer import byte_table, gguf_tokenizer, literal_twin
from sgnb.engine.tokenizer.borders import BorderRule, Encode, check_rule, encode_steps, make_rule
from sgnb.engine.tokenizer.cache_file import read_cached, write_cached
from sgnb.engine.tokenizer.chat_template import CHATML, TurnTemplate, read_template
from sgnb.engine.tokenizer.steps import Steps, run_steps
from sgnb.errors import ModelFileError
from sgnb.messages import ModelInfo, SchedulerReady

log = logging.getLogger(__name__)

MAX_JSON_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found as text, before the tokenizer proper. Flags as in ``tokenizer.json``."""

    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(slots=True)
class ModelTokenizer:
    """A loaded tokenizer. ``encode_plain`` is the library without dropped tokens, BOS and dummy prefix."""

    name: str
    table: list[bytes]
    """Bytes of each id."""
    encode_plain: Encode
    added: list[AddedToken]
    """The tokens the literal view does not know."""
    rule: BorderRule
    bos_id: int | None
    add_bos: bool
    eos_token_ids: list[int]
    dummy: literal_twin.DummyPrefix
    chat_template: str | None
    template: TurnTemplate
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the chat template is rendered with: ``bos_token`` and the like."""
    _by_text: dict[str, AddedToken] = field(init=False)
    _split: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        self._by_text = {token.content: token for token in self.added if token.content}
        texts = sorted(self._by_text, key=lambda text: (-len(text), text))
        self._split = re.compile("|".join(map(re.escape, texts))) if texts else None

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self.table)

    @property
    def bos(self) -> int | None:
        """The id a session starts with, or None where the model wants none."""
        return self.bos_id if self.add_bos else None

    @property
    def start_ids(self) -> list[int]:
        """What an empty prompt starts from: BOS, or else the first EOS; empty if the model has neither."""
        return [self.bos_id] if self.bos_id is not None else self.eos_token_ids[:1]

    def split_added(self, text: str) -> list[str | AddedToken]:
        """``text`` cut at its added tokens (leftmost, longest), as the parsing view sees it; no empty strings."""
        if self._split is None:
            return [text] if text else []
        parts: list[str | AddedToken] = []
        start = 0
        for match in self._split.finditer(text):
            token = self._by_text[match[0]]
            if match.start() < start or (token.single_word and not _stands_alone(text, match)):
                continue
            before = text[start : match.start()]
            if token.lstrip:
                before = before.rstrip()
            if before:
                parts.append(before)
            parts.append(token)
            start = match.end()
            while token.rstrip and start < len(text) and text[start].isspace():
                start += 1
        if start < len(text):
            parts.append(text[start:])
        return parts

    def encode_run(self, text: str, *, first: bool = False) -> Steps[list[int]]:
        """Ids of literal text, in steps. ``first``: it is the start of a session, so the dummy prefix is due."""
        if (
            first
            and text
            and self.dummy
            and (self.dummy == "always" or not text.startswith((" ", byte_table.BLANK)))
        ):
            text = " " + text
        return (yield from encode_steps(text, self.rule, self.encode_plain))

    def encode(self, text: str, *, parse: bool = True, first: bool = True) -> list[int]:
        """Ids of one whole text, without BOS. ``parse``: added tokens in it count; else they stay text."""
        return run_steps(self.encode_steps(text, parse=parse, first=first))

    def encode_steps(self, text: str, *, parse: bool = True, first: bool = True) -> Steps[list[int]]:
        """``encode`` that gives way after each piece of a long text."""
        ids: list[int] = []
        for part in self.split_added(text) if parse else [text]:
            if isinstance(part, AddedToken):
                ids.append(part.id)
            else:
                ids += yield from self.encode_run(part, first=first and not ids)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids by the table, special tokens included; for messages and tests."""
        return b"".join(self.table[i] for i in ids).decode("utf-8", "replace")


def model_info(
    tokenizer: ModelTokenizer, *, model: str, path: str, runner: str, ready: SchedulerReady
) -> ModelInfo:
    """What clients are told of the model."""
    template = tokenizer.template
    return ModelInfo(
        model=model,
        path=path,
        runner=runner,
        vocab_size=ready.vocab_size,
        context_length=ready.context_length,
        max_total_tokens=ready.max_total_tokens,
        dtype=ready.dtype,
        device=ready.device,
        attention_backend=ready.attention_backend,
        eos_token_ids=tokenizer.eos_token_ids,
        roles=template.roles,
        default_system=template.default_system,
        template_exact=template.exact,
        template_hash=template.hash,
    )


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    return not re.match(r"\w", before) and not re.match(r"\w", after)


# ---------------------------------------------------------------- loading


def load_tokenizer(model: ModelPath) -> ModelTokenizer:
    """The tokenizer of a model on this machine; of a GGUF file it is converted once and cached.

    ModelFileError names the file, what was expected and what was found.
    """
    cache = cache_dir() / "tokenizers"
    source = _read_gguf(model.path, cache) if model.kind == "gguf" else _read_folder(model.path)
    return build_tokenizer(source, model.name, cache)


def _read_gguf(path: Path, cache: Path) -> dict[str, Any]:
    stat = path.stat()
    key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{gguf_tokenizer.CONVERTER_VERSION}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    stored = cache / f"{path.stem}-{digest}.cached"
    content = read_cached(stored)
    if content is not None:
        found: dict[str, Any] = json.loads(content)  # what we wrote ourselves, byte for byte
        return found
    with GGUFReader(path) as reader:
        source = gguf_tokenizer.convert(reader.metadata, str(path))
    write_cached(stored, json.dumps(source, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return source


def _read_folder(folder: Path) -> dict[str, Any]:
    spec = _read_json(folder / "tokenizer.json", required=True)
    config = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        template = _read_text(jinja)
    ids = {str(token["content"]): int(token["id"]) for token in byte_table.added_tokens(spec)}
    ids = {**{piece: i for i, piece in byte_table.vocabulary(spec, str(folder)).items()}, **ids}
    names = {key: _content(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    eos = generation.get("eos_token_id", [])
    eos_ids = [i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int)]
    if names["eos_token"] in ids:
        eos_ids.append(ids[names["eos_token"]])
    leading = _leading_ids(spec, folder)
    add_bos = config.get("add_bos_token")
    bos_id = ids.get(names["bos_token"], leading[0] if leading else None)
    return {
        "tokenizer": spec,
        "chat_template": template if isinstance(template, str) else None,
        "bos_id": bos_id,
        "eos_ids": list(dict.fromkeys(eos_ids)),
        "add_bos": add_bos if isinstance(add_bos, bool) else bool(leading),
        "variables": {key: text for key, text in names.items() if text},
    }


def _leading_ids(spec: Mapping[str, Any], folder: Path) -> list[int]:
    """What the post-processor puts before a text."""
    if not spec.get("post_processor"):
        return []
    library = literal_twin.make_library(spec, str(folder))
    plain = library.encode("a", add_special_tokens=False).ids
    full = library.encode("a").ids
    at = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    return list(full[:at])


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path}: {path.stat().st_size} bytes, at most {MAX_JSON_BYTES} are read")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from None


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not required and not path.is_file():
        return {}
    if not path.is_file():
        raise ModelFileError(
            f"{path}: not found",
            hint="The model's folder needs a tokenizer.json; other tokenizer files are not read.",
        )
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: expected an object, found {type(value).__name__}")
    return value


def build_tokenizer(source: Mapping[str, Any], name: str, cache: Path | None = None) -> ModelTokenizer:
    """A ModelTokenizer from ``tokenizer`` (a ``tokenizer.json``), ``chat_template``, ``bos_id``, ``eos_ids``, ``add_bos``.

    ``cache``: folder of the read chat templates, or None. ModelFileError when the tokenizer is not supported.
    """
    spec: dict[str, Any] = source["tokenizer"]
    table = byte_table.build(spec, name)
    chat_template: str | None = source.get("chat_template")
    dropped = [
        AddedToken(
            int(token["id"]),
            str(token["content"]),
            bool(token.get("special")),
            bool(token.get("lstrip")),
            bool(token.get("rstrip")),
            bool(token.get("single_word")),
        )
        for token in byte_table.added_tokens(spec)
        if literal_twin.is_dropped(token, chat_template)
    ]
    plain_spec, dummy, inert = literal_twin.plain_spec(spec, {token.content for token in dropped})
    library = literal_twin.make_library(plain_spec, name)

    def encode_plain(texts: Sequence[str]) -> list[list[int]]:
        # encode_batch_fast releases the GIL, encode does not.
        return [e.ids for e in library.encode_batch_fast(list(texts), add_special_tokens=False)]

    rstrip = [t["content"] for t in byte_table.added_tokens(spec) if t.get("rstrip")]
    added_texts = [str(token["content"]) for token in byte_table.added_tokens(spec)]
    rule = make_rule(table, added_texts, rstrip)
    if not inert or not check_rule(rule, encode_plain):
        log.warning("tokenizer of %s: pending text is never cut early", name)
        rule = BorderRule(hold=True)
    # An unknown character gives the unknown token, whatever it spells.
    unknown = spec["model"].get("unk_id"), spec["model"].get("unk_token")
    forgeable = [t for t in dropped if t.content and t.id != unknown[0] and t.content != unknown[1]]
    literal_twin.check_literal({t.content: t.id for t in forgeable}, encode_plain, name)
    variables = dict(source.get("variables") or {})
    bos_id: int | None = source.get("bos_id")
    eos_ids = [i for i in dict.fromkeys(source.get("eos_ids") or ()) if 0 <= i < len(table)]
    for key, token_id in (("bos_token", bos_id), ("eos_token", eos_ids[0] if eos_ids else None)):
        if key not in variables and token_id is not None:
            variables[key] = table[token_id].decode("utf-8", "replace")
    template = read_template(chat_template, variables, name, cache)
    if template.error or not template.exact:
        log.warning("%s", template.error or f"chat template of {name}: turns are approximated")
    return ModelTokenizer(
        name=name,
        table=table,
        encode_plain=encode_plain,
        added=dropped,
        rule=rule,
        bos_id=bos_id,
        add_bos=bool(source.get("add_bos")) and bos_id is not None,
        eos_token_ids=eos_ids,
        dummy=dummy,
        chat_template=chat_template,
        template=template,
        variables=variables,
    )


def stub_tokenizer() -> ModelTokenizer:
    """Stands in where there is no model: ids 0..255 are bytes, then ChatML's specials; 257 is EOS."""
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]

    def encode_plain(texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    table = [*(bytes([i]) for i in range(256)), *(text.encode() for text in specials)]
    return ModelTokenizer(
        name="stub",
        table=table,
        encode_plain=encode_plain,
        added=[AddedToken(256 + i, text, special=True) for i, text in enumerate(specials)],
        rule=make_rule((), specials, ()),
        bos_id=258,
        add_bos=False,
        eos_token_ids=[257],
        dummy="",
        chat_template=None,
        template=CHATML,
    )
