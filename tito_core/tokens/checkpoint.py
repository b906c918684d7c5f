"""Reading a checkpoint directory, and accepting it for a family or refusing it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from tito_core.errors import CheckpointError
from tito_core.families.family import NATIVE, Checkpoint, Family, Template
from tito_core.tokens.encoder import Encoder

__all__ = ["accept", "check_control_tokens", "check_model_type", "read"]

LARGEST = 64 * 1024 * 1024
"""The largest configuration or template of a checkpoint that is read, in bytes."""

FLAGS: Final = ("lstrip", "rstrip", "single_word")
"""What an added token's match depends on beside its text."""


def read(model: str | os.PathLike[str]) -> Checkpoint:
    """What choosing a template needs of a checkpoint directory. Raises CheckpointError."""
    path = Path(os.path.expanduser(model))
    if not os.path.isdir(path):
        raise CheckpointError(
            f"{path} is not a directory; --model takes a checkpoint in Hugging Face layout on this machine"
        )
    config = _json(path / "config.json")
    if config is None:
        raise CheckpointError(f"{path} has no config.json, so its model type is unknown; is it a whole checkpoint?")
    model_type = config.get("model_type")
    file, declared = "chat_template.jinja", _json(path / "tokenizer_config.json") or {}
    files = {"default": path / file, **{one.stem: one for one in (path / "additional_chat_templates").glob("*.jinja")}}
    named = {name: text for name, one in files.items() if (text := _text(one)) is not None}
    if not named:
        file, named = "tokenizer_config.json", _templates(declared.get("chat_template"))
    return Checkpoint(
        path=path,
        model_type=model_type if isinstance(model_type, str) else None,
        chat_template=named.get("default"),
        chat_template_file=file,
        chat_template_names=tuple(sorted(named)),
        special_tokens=_special_tokens(path, declared),
    )


def check_model_type(family: Family, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for a checkpoint of another model type. Nothing but its config was read to tell."""
    if checkpoint.model_type not in family.model_types:
        raise CheckpointError(
            f"{checkpoint.path} has the model type {checkpoint.model_type!r}, and {family.name} is "
            f"{' or '.join(repr(kind) for kind in family.model_types)}; choose the family that this checkpoint belongs to"
        )


def accept(family: Family, checkpoint: Checkpoint, encoder: Encoder, template: Template) -> list[str]:
    """Warnings about a checkpoint that can be used, rendered with `template`. Raises CheckpointError for one of another
    family."""
    check_model_type(family, checkpoint)
    _check_added_tokens(checkpoint.path, encoder)
    check_control_tokens(family, encoder, str(checkpoint.path), ids=True)
    digest = checkpoint.chat_template_sha256
    own = family.template != NATIVE and digest == template.sha256
    warnings = _unstopped(family, checkpoint, encoder)
    if checkpoint.chat_template is None or own or digest in family.chat_template_sha256:
        return warnings
    if not any(token in checkpoint.chat_template for token in family.segments.delimiters):
        raise CheckpointError(
            f"{checkpoint.path} has a chat template that prints none of {', '.join(family.segments.delimiters)}, which "
            f"delimit the messages of {family.name}; it belongs to another family"
        )
    used = "it" if family.template == NATIVE else family.template
    return [
        *warnings,
        f"{checkpoint.path} has a chat template of its own (sha256 {digest}) that {family.name} does not know; prompts "
        f"are rendered with {used}, so make sure that this checkpoint is one of {', '.join(family.models)}",
    ]


def _unstopped(family: Family, checkpoint: Checkpoint, encoder: Encoder) -> list[str]:
    """A warning where an engine stops at what the checkpoint says, and that is not what ends a turn: a base model's, say."""
    files = (_json(checkpoint.path / name) or {} for name in ("config.json", "generation_config.json"))
    said = [file.get("eos_token_id") for file in files]
    ids = {one for many in said for one in (many if isinstance(many, list) else [many]) if isinstance(one, int)}
    stop, eos = family.boundary.stop[0], encoder.token_id(checkpoint.special_tokens.get("eos_token", ""))
    if not ids or encoder.token_id(stop) in {*ids, eos}:
        return []
    return [
        f"{checkpoint.path} has an engine stop at the ids {sorted(ids)}, and not at {stop} (id {encoder.token_id(stop)}), which "
        f"ends a turn of {family.name}: tell the engine to (stop_token_ids), or it samples on past the turn"
    ]


def check_control_tokens(family: Family, encoder: Encoder, where: str, *, ids: bool) -> None:
    """Raises CheckpointError where a control token is not one id of the vocabulary, or not the declared one: with `ids`
    of a checkpoint, without them of what the plugin ships."""
    correct = "correct control_tokens in the declaration, or put it behind the vocabulary's last id (added)"
    for token in family.control_tokens:
        found = encoder.token_id(token.text)
        if found is None:
            raise CheckpointError(
                f"{where} has no control token {token.text!r}, which {family.name} prints; "
                f"{'it belongs to another family' if ids else correct}"
            )
        if ids and token.id is not None and found != token.id:
            raise CheckpointError(
                f"{where} has the control token {token.text!r} as id {found}, and {family.name} has it as {token.id}; "
                "it belongs to another family"
            )


def _check_added_tokens(path: Path, encoder: Encoder) -> None:
    """Raises CheckpointError where another file has an added token that tokenizer.json has not, or has otherwise."""
    known = {token.content: token for token in encoder.tokenizer.get_added_tokens_decoder().values()}
    file = path / "tokenizer_config.json"
    listed = (_json(file) or {}).get("added_tokens_decoder")
    if listed is None:
        file = path / "added_tokens.json"
        listed = {text: {"content": text} for text in _json(file) or {}}
    for one in listed.values() if isinstance(listed, dict) else ():
        token = one if isinstance(one, dict) else {"content": one}
        text, said, other = str(token.get("content")), "", "not"
        if (ours := known.get(text)) is not None:
            flag = next(
                (flag for flag in FLAGS if bool(token.get(flag, getattr(ours, flag))) is not getattr(ours, flag)), None
            )
            if flag is None:
                continue
            said, other = (f" with {flag}", "without") if token[flag] else (f" without {flag}", "with")
        raise CheckpointError(
            f"{file} has the added token {text!r}{said}, and tokenizer.json has it {other}: an engine encodes text by both; "
            "save the tokenizer with tokenizer.save_pretrained, which writes one file"
        )


def _templates(declared: Any) -> dict[str, str]:
    """The chat templates of a tokenizer_config.json by name: one text is the default, several have names."""
    if isinstance(declared, str):
        return {"default": declared}
    if isinstance(declared, list):
        declared = {one.get("name"): one.get("template") for one in declared if isinstance(one, dict)}
    named = declared.items() if isinstance(declared, dict) else ()
    return {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}


def _special_tokens(path: Path, declared: dict[str, Any]) -> dict[str, str]:
    """The control tokens that a checkpoint gives a template to read, as text or as an added token.

    They stand in its tokenizer_config.json; where that lists no added tokens, in special_tokens_map.json before that.
    """
    if "added_tokens_decoder" not in declared:
        declared = {**declared, **(_json(path / "special_tokens_map.json") or {})}
    if isinstance(extra := declared.get("extra_special_tokens"), dict):
        declared = {**declared, **extra}
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in declared.items()}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def _json(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} can't be read as JSON: {cause}") from cause
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def _text(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > LARGEST:
            raise CheckpointError(f"{path} is larger than {LARGEST} bytes; is it the file it is named after?")
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as cause:
        if isinstance(cause, CheckpointError):
            raise
        raise CheckpointError(f"{path} can't be read: {cause}") from cause
