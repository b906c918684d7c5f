"""`load`: a family bound to a shipped vocabulary or to a checkpoint, and what is refused, word for word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

import tito_core
from mutants import TemplateMutant, printed
from oracles import tokenizer_json
from tito_core import Completion, ControlToken
from tito_core.errors import (
    CheckpointError,
    EncodingError,
    FamilyError,
    GateError,
    TemplateError,
    ThinkingError,
    UnknownFamilyError,
)
from tito_core.families.defaults import tito_resolve_template
from tito_core.families.registry import Registry
from tito_core.tokens import checkpoint
from tito_core.verify.run import verify
from token_path import NAMES, Name, literal_ids, toy_tokenizer

R1_SHA256 = "ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "naïve ☕"}]


def directory(path: Path, config: Any = None, *, tokenizer: Path | bytes | None = None, **files: Any) -> Path:
    """A checkpoint: config.json, tokenizer.json, and further files by their name with _ for the dot."""
    path.mkdir(exist_ok=True)
    if config is not None:
        files["config_json"] = config
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (path / ".".join(name.rsplit("_", 1))).write_text(text, encoding="utf-8")
    if isinstance(tokenizer, Path):
        (path / "tokenizer.json").symlink_to(tokenizer)
    elif tokenizer is not None:
        (path / "tokenizer.json").write_bytes(tokenizer)
    return path


V32 = {"model_type": "deepseek_v32"}


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        tito_core.load("deepseekv32", model=path)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_brings_its_own_vocabulary(name: Name, tmp_path: Path) -> None:
    path = directory(tmp_path / "DeepSeek-V3.2", V32, tokenizer=tokenizer_json(name))
    codec = tito_core.load("deepseekv32", model=path)
    assert codec.prompt(MESSAGES).ids.tolist() == literal_ids(name, MESSAGES, thinking=True).tolist()
    assert (codec.origin.vocabulary, codec.origin.title) == ("checkpoint", str(path))
    assert codec.origin.stands_in_for is None
    assert codec.origin.warnings == ()
    assert codec.origin.sha256 == hashlib.sha256(tokenizer_json(name).read_bytes()).hexdigest()
    assert codec.encoder.fast


def test_verify_runs_on_a_checkpoint_and_records_what_it_does_not_know(tmp_path: Path) -> None:
    """An unknown chat template is a warning; the path may be a string."""
    config = {"chat_template": "<｜User｜>{{ messages }}"}
    path = directory(tmp_path / "m", V32, tokenizer=tokenizer_json("r1"), tokenizer_config_json=config)
    report = verify("deepseekv32", model=str(path), conversations=6, sessions=1)
    assert report.exit_code == 0
    (used,) = report.vocabulary
    assert (used.name, used.title, used.sha256, used.stands_in_for) == ("checkpoint", str(path), R1_SHA256, None)
    digest = hashlib.sha256("<｜User｜>{{ messages }}".encode()).hexdigest()
    assert report.warnings == (
        f"{path} has a chat template of its own (sha256 {digest}) that deepseekv32 does not know; prompts are rendered "
        "with tito_deepseek.v32_encoding:V32Encoding, so make sure that this checkpoint is one of "
        "deepseek-ai/DeepSeek-V3.2",
    )


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, None),
        ({"generation_config_json": {"eos_token_id": None}}, None),
        ({"generation_config_json": {"eos_token_id": 1}}, None),
        ({"generation_config_json": {"eos_token_id": [3, 1]}}, None),
        ({"generation_config_json": {"eos_token_id": 3}, "config_json": {**V32, "eos_token_id": 1}}, None),
        (
            {
                "generation_config_json": {"eos_token_id": 3},
                "tokenizer_config_json": {"eos_token": "<｜end▁of▁sentence｜>"},
            },
            None,
        ),
        ({"generation_config_json": {"eos_token_id": [7, 3]}, "tokenizer_config_json": {"eos_token": "</s>"}}, [3, 7]),
        ({"config_json": {**V32, "eos_token_id": 0}}, [0]),
    ],
)
def test_a_checkpoint_at_whose_stop_token_no_engine_stops(
    files: dict[str, Any], ids: list[int] | None, tmp_path: Path
) -> None:
    """As a base model's, in which a document's end is all that is known."""
    path = directory(tmp_path / "m", tokenizer=tokenizer_json("r1"), **{"config_json": V32, **files})
    assert tito_core.load("deepseekv32", model=path).origin.warnings == (
        ()
        if ids is None
        else (
            f"{path} has an engine stop at the ids {ids}, and not at <｜end▁of▁sentence｜> (id 1), which ends a turn of "
            "deepseekv32: tell the engine to (stop_token_ids), or it samples on past the turn",
        )
    )


def test_a_checkpoint_whose_template_prints_another_format_is_refused(tmp_path: Path) -> None:
    """It may have the family's vocabulary and model type: a distilled model has its base's."""
    config = {"chat_template": "<|im_start|>{{ messages }}"}
    path = directory(tmp_path / "m", V32, tokenizer=tokenizer_json("r1"), tokenizer_config_json=config)
    with pytest.raises(CheckpointError) as caught:
        tito_core.load("deepseekv32", model=path)
    assert str(caught.value) == (
        f"{path} has a chat template that prints none of <｜begin▁of▁sentence｜>, <｜end▁of▁sentence｜>, <｜User｜>, "
        "<｜Assistant｜>, which delimit the messages of deepseekv32; it belongs to another family"
    )


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config_json": {}}, None),
        ({"tokenizer_config_json": {"chat_template": "a"}}, "a"),
        ({"tokenizer_config_json": {"chat_template": "a"}, "chat_template_jinja": "b"}, "b"),
        ({"tokenizer_config_json": {"chat_template": [{"name": "tool_use", "template": "a"}]}}, None),
        ({"tokenizer_config_json": {"chat_template": {"x": "a", "default": "b"}}}, "b"),
        (
            {
                "tokenizer_config_json": {
                    "chat_template": [{"name": "x", "template": "a"}, {"name": "default", "template": "b"}]
                }
            },
            "b",
        ),
    ],
)
def test_which_chat_template_is_in_force(files: Mapping[str, Any], template: str | None, tmp_path: Path) -> None:
    assert checkpoint.read(directory(tmp_path, V32, **files)).chat_template == template


@pytest.mark.parametrize("where", ["a list", "a mapping", "files", "files beside another"])
def test_a_template_for_requests_with_tools_alone_is_told(where: str, tmp_path: Path) -> None:
    """`transformers` takes it for a request with tools: then no one template renders a conversation."""
    named = {"default": "a", "tool_use": "b"}
    if where == "a list":
        files: dict[str, Any] = {"chat_template": [{"name": name, "template": text} for name, text in named.items()]}
    else:
        files = {"chat_template": named if where == "a mapping" else "c"}
    path = directory(tmp_path, V32, tokenizer_config_json=files)
    if where.startswith("files"):
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text("b", encoding="utf-8")
        (path / "chat_template.jinja").write_text("a", encoding="utf-8")
    if where == "files beside another":
        (path / "additional_chat_templates" / "rag.jinja").write_text("d", encoding="utf-8")
    read = checkpoint.read(path)
    assert (read.chat_template, "tool_use" in read.chat_template_names) == ("a", True)
    family = tito_core.get_family("deepseekv32").model_copy(update={"template": "native"})
    with pytest.raises(FamilyError) as caught:
        tito_resolve_template(family, read, "tito_deepseek")
    also = ", rag" * (where == "files beside another")
    assert str(caught.value) == (
        f"the family deepseekv32 renders with the checkpoint's own chat template, and {path} has several (default{also}, "
        "tool_use), of which an engine takes tool_use for requests with tools; leave one, as chat_template.jinja"
    )


def test_the_special_tokens_that_a_template_may_read(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
    }
    read = checkpoint.read(directory(tmp_path, V32, tokenizer_config_json=config, chat_template_jinja="b"))
    assert read.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, {"bos_token": "<s>"}),  # an older checkpoint: its tokens stand in a file of their own, which counts
        ({"bos_token": "<t>"}, {"bos_token": "<s>"}),
        ({"bos_token": "<t>", "added_tokens_decoder": {}}, {"bos_token": "<t>"}),
        ({"extra_special_tokens": {"call_token": "<c>"}}, {"bos_token": "<s>", "call_token": "<c>"}),
        ({"extra_special_tokens": ["<c>"]}, {"bos_token": "<s>"}),
    ],
)
def test_where_a_checkpoint_keeps_its_special_tokens(
    config: Mapping[str, Any], found: Mapping[str, str], tmp_path: Path
) -> None:
    """As `transformers` reads them, which renders an engine's prompts."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    path = directory(
        tmp_path,
        V32,
        tokenizer=toy_tokenizer([], ["<s>", "<t>", "<c>"]),
        tokenizer_config_json=config,
        special_tokens_map_json={"bos_token": {"content": "<s>", "lstrip": False}},
    )
    tokens = AutoTokenizer.from_pretrained(str(path), local_files_only=True).special_tokens_map
    assert {name: text for name, text in tokens.items() if isinstance(text, str)} == found
    assert checkpoint.read(path).special_tokens == found


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "qwen2"}, "'qwen2'"),  # a distilled model carries the type of its base
        ({"model_type": "deepseek_v4"}, "'deepseek_v4'"),
        ({"model_type": 3}, "None"),
        ({}, "None"),
    ],
)
def test_another_model_type_is_refused(config: object, said: str, tmp_path: Path) -> None:
    """Before its tokenizer is read: there is none here."""
    path = directory(tmp_path / "m", config)
    assert refused(path) == (
        f"{path} has the model type {said}, and deepseekv32 is 'deepseek_v32'; choose the family that this checkpoint "
        "belongs to"
    )


def test_a_control_token_with_another_id_is_refused(tmp_path: Path) -> None:
    declared = json.loads(tokenizer_json("r1").read_text(encoding="utf-8"))
    tokens = {token["content"]: token for token in declared["added_tokens"]}
    user, assistant = tokens["<｜User｜>"], tokens["<｜Assistant｜>"]
    user["content"], assistant["content"] = assistant["content"], user["content"]
    path = directory(tmp_path / "m", V32, tokenizer=json.dumps(declared).encode())
    assert refused(path) == (
        f"{path} has the control token '<｜User｜>' as id 128804, and deepseekv32 has it as 128803; it belongs to another "
        "family"
    )


PLAIN = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"tokenizer_config_json": {"added_tokens_decoder": {"7": {"content": "<new>", **PLAIN}}}},
            "tokenizer_config.json has the added token '<new>', and tokenizer.json has it not",
        ),
        (
            {"added_tokens_json": {"<new>": 7}},
            "added_tokens.json has the added token '<new>', and tokenizer.json has it not",
        ),
        (
            {
                "tokenizer_config_json": {
                    "added_tokens_decoder": {"7": {"content": "<｜User｜>", **PLAIN, "rstrip": True}}
                }
            },
            "tokenizer_config.json has the added token '<｜User｜>' with rstrip, and tokenizer.json has it without",
        ),
    ],
)
def test_files_that_disagree_about_added_tokens_are_refused(
    files: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    """`transformers`, and an engine with it, takes them from all: text of ours would be one id of theirs."""
    path = directory(tmp_path / "m", V32, tokenizer=tokenizer_json("r1"), **files)
    assert refused(path) == (
        f"{path}/{said}: an engine encodes text by both; save the tokenizer with tokenizer.save_pretrained, which writes one file"
    )


def test_files_that_agree_about_added_tokens_are_accepted(tmp_path: Path) -> None:
    declared = json.loads(tokenizer_json("r1").read_text(encoding="utf-8"))
    named = {str(token.pop("id")): {**token, "normalized": True} for token in declared["added_tokens"]}
    path = directory(
        tmp_path / "m",
        V32,
        tokenizer=tokenizer_json("r1"),
        tokenizer_config_json={"added_tokens_decoder": named},
        added_tokens_json={"<new>": 7},  # not read where the other lists them
    )
    assert tito_core.load("deepseekv32", model=path).origin.warnings == ()


def test_a_missing_control_token_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", V32, tokenizer=toy_tokenizer((), ("<|end|>",)))
    assert refused(path) == (
        f"{path} has no control token '<｜begin▁of▁sentence｜>', which deepseekv32 prints; it belongs to another family"
    )


def test_a_shipped_vocabulary_without_a_control_token_is_the_declarations_fault() -> None:
    codec = tito_core.load("deepseekv32")
    more = (*codec.family.control_tokens, ControlToken(text="<|begin|>"))
    odd = codec.family.model_copy(update={"control_tokens": more})
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check_control_tokens(odd, codec.encoder, "the vocabulary r1", ids=False)
    assert str(caught.value) == (
        "the vocabulary r1 has no control token '<|begin|>', which deepseekv32 prints; correct control_tokens in the "
        "declaration, or put it behind the vocabulary's last id (added)"
    )


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    hint = "--model takes a checkpoint in Hugging Face layout on this machine"
    assert refused(absent) == f"{absent} is not a directory; {hint}"
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'} is not a directory; {hint}"
    empty = directory(tmp_path / "empty")
    assert refused(empty) == f"{empty} has no config.json, so its model type is unknown; is it a whole checkpoint?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "can't be read as JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "holds a JSON list, not an object"),
        ("[" * 99999, "can't be read as JSON: maximum recursion depth exceeded"),
    ],
)
def test_a_broken_config_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", text)
    assert refused(path).startswith(f"{path / 'config.json'} {said}")


def test_files_that_are_not_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory(tmp_path / "m", V32)
    (path / "chat_template.jinja").write_bytes(b"\xff")
    assert refused(path).startswith(
        f"{path / 'chat_template.jinja'} can't be read: 'utf-8' codec can't decode byte 0xff"
    )
    monkeypatch.setattr(checkpoint, "LARGEST", 3)
    assert refused(path) == f"{path / 'config.json'} is larger than 3 bytes; is it the file it is named after?"


def test_a_directory_that_may_not_be_searched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    assert refused(Path("a" * 300)).startswith(f"{'a' * 300} is not a directory; ")
    path = directory(tmp_path / "m", V32)
    monkeypatch.setattr(Path, "stat", denied)
    assert refused(path) == (
        f"{path / 'config.json'} can't be read: [Errno 13] Permission denied: '{path / 'config.json'}'"
    )


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", V32, tokenizer=b"{}")
    assert refused(path).startswith(
        f"{path / 'tokenizer.json'}: this is not a tokenizer.json that `tokenizers` can read"
    )


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", V32)
    said = refused(path)
    assert said.startswith(f"{path} has no tokenizer.json, and transformers can't make one from what is there: ")
    assert said.endswith("; save the tokenizer with tokenizer.save_pretrained, which writes it")
    assert "\n" not in said
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("HOME", str(tmp_path))
        assert refused(Path("~/m")) == said


def test_names_that_are_not_known_are_refused() -> None:
    for arguments, said in (
        ({"revision": "x"}, "deepseekv32: no revision is named 'x'; known: open, answered"),
        ({"vocabulary": "x"}, "deepseekv32: no vocabulary is named 'x'; known: r1, v4"),
        (
            {"vocabulary": "r1", "model": "."},
            "model and vocabulary are both given; a checkpoint brings its own vocabulary",
        ),
    ):
        with pytest.raises(FamilyError) as caught:
            tito_core.load("deepseekv32", **arguments)
        assert str(caught.value) == said
    with pytest.raises(UnknownFamilyError, match="no installed plugin provides the family 'deepseekv3'.*did you mean"):
        tito_core.load("deepseekv3")


def test_without_a_checkpoint_the_first_vocabulary_stands_in() -> None:
    codec = tito_core.load("deepseekv32")
    origin = codec.origin
    assert (origin.vocabulary, origin.title, origin.sha256) == ("r1", "DeepSeek R1", R1_SHA256)
    assert origin.stands_in_for == "DeepSeek V3.2"
    assert codec.revision.name == "open"
    assert [message.content for message in codec.normalise([{"role": "assistant", "content": None}])] == [""]


def test_narrowed_roles_and_sessions() -> None:
    codec = tito_core.load("deepseekv32")
    assert codec.narrowed(None) == codec.append_roles
    assert codec.narrowed(["tool", "user"]).roles == {"tool", "user"}
    with pytest.raises(FamilyError, match=r"^append_roles is the text 'tool'; pass a set of names$"):
        codec.session(append_roles="tool")
    with pytest.raises(FamilyError) as caught:
        codec.session(append_roles={"system"})
    assert str(caught.value) == (
        "deepseekv32: append roles ['system'] leave no append that a prompt may end with; keep one of ['tool', 'user'], "
        "and what may stand before it"
    )
    with pytest.raises(FamilyError) as caught:
        codec.session(append_roles={"user", "developer"})
    assert str(caught.value) == (
        "deepseekv32: append roles ['developer'] are not among the family's ['assistant', 'system', 'tool', 'user']: a "
        "caller may narrow them, never widen them"
    )
    with pytest.raises(ThinkingError):
        codec.session(thinking=True, chat_template_kwargs={"thinking": False})
    session = codec.session(append_roles={"tool", "user"})
    request = session.prepare(MESSAGES)
    session.commit(request, Completion([67, 1], [0.0, 0.0], "stop", message={"role": "assistant", "content": "a"}))
    with pytest.raises(GateError) as gated:
        session.prepare(
            [*MESSAGES, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}, *MESSAGES]
        )
    assert str(gated.value) == (
        "message 2 (system) can't be appended to a deepseekv32 session after an assistant message: what may stand there "
        "is tool or user"
    )


def test_modes_are_named() -> None:
    codec = tito_core.load("deepseekv32")
    with pytest.raises(EncodingError) as caught:
        codec.prompt(MESSAGES, mode="strict")  # type: ignore[arg-type]
    assert str(caught.value) == "no encoding mode is named 'strict'; choose literal, reject or engine"


@pytest.mark.parametrize("family", [info.name for info in tito_core.list_families()])
@pytest.mark.parametrize("system", [False, True])
def test_what_a_tool_spells_is_no_messages_fault(family: str, system: bool) -> None:
    """Wherever its schema is printed, inside of a system message too."""
    codec = tito_core.load(family)
    stop = codec.family.boundary.stop[0]
    tools = [{"type": "function", "function": {"name": "f", "description": f"ends in {stop}"}}]
    messages = [*[{"role": "system", "content": "S"}] * system, *MESSAGES]
    prompt = codec.prompt(messages, tools=tools)
    nobodys = [one for one in prompt.spans if (one.source, one.index) == ("content", -1)]
    schema = "".join(codec.decode(prompt.ids[one.start : one.end]) for one in nobodys)
    assert "ends in" in schema
    with pytest.raises(EncodingError) as caught:
        codec.prompt(messages, tools=tools, mode="reject")
    assert (caught.value.where["index"], caught.value.where["role"]) == (None, None)
    assert str(caught.value).startswith(f"a tool or a template kwarg spells the control token {stop!r} ")


def test_compare_and_decode() -> None:
    codec = tito_core.load("deepseekv32")
    ids = codec.prompt(MESSAGES).ids
    assert codec.decode(ids) == "<｜begin▁of▁sentence｜><｜User｜>naïve ☕<｜Assistant｜><think>"
    assert codec.compare(ids, ids.copy()) == []
    (found,) = codec.compare(ids, np.append(ids, np.int32(1)))
    assert found.kind == "special_token_count"


def test_a_mode_of_truncation_is_chosen_by_the_session() -> None:
    codec = tito_core.load("deepseekv32")
    session = codec.session(truncation="close")
    said = {"role": "assistant", "content": "", "reasoning_content": "a"}
    session.commit(session.prepare(MESSAGES), Completion([67, 67], [0.0, 0.0], "length", message=said))
    request = session.prepare([*MESSAGES, said, {"role": "user", "content": "on"}])
    assert codec.decode(request.ledger.inserted) == "</think><｜end▁of▁sentence｜>"
    session.commit(request, Completion([67, 1], [0.0, 0.0], "stop", message={"role": "assistant", "content": "a"}))
    (sample,) = session.samples()
    assert sample.loss_mask.sum() == 4
    assert {mismatch.kind for mismatch in session.compare()} <= {"assistant_text"}


REFUSING = TemplateMutant(
    "refuses a word",
    "",
    "qwen3",
    "    {%- elif message.role == 'assistant' %}",
    "    {%- elif message.content == 'no' %}{{ raise_exception('not this: message 3') }}"
    "    {%- elif message.role == 'assistant' %}",
)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen3", "the template tito_qwen/templates/qwen3.jinja refuses message 6 (assistant): not this: message 3"),
        (
            "deepseekv4",
            "message 6 (assistant) holds an integer that no double holds, and the format prints numbers as doubles; send it as "
            "a string",
        ),
    ],
)
def test_what_a_template_refuses_of_an_append_is_named_by_its_place_in_the_conversation(family: str, said: str) -> None:
    with printed(REFUSING):
        codec = Registry().load(family)
    session, talk = codec.session(thinking=False), [*MESSAGES]
    for _ in range(2):
        stop = codec.encoder.token_id(codec.family.boundary.stop[0])
        session.commit(session.prepare(talk), Completion([67, stop], [0.0, 0.0], "stop"))
        talk += [session.messages()[-1].wire(), *MESSAGES]
    call = {"id": "c", "function": {"name": "f", "arguments": f'{{"a": {10**320}}}'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    with pytest.raises(TemplateError) as refusal:
        session.prepare([*talk, *MESSAGES, {"role": "assistant", "content": "no", "tool_calls": [call]}, result])
    assert str(refusal.value) == said
    assert refusal.value.where == {"index": 6, "role": "assistant"}
    assert session.prepare(talk).parent is session.turns[-1]
