"""Every piece of data in the seeds parses into its model and comes back the same.

The seeds write data in several ways: JSON, the bodies of ```http blocks, a curl body, lines of a
dialogue, JavaScript literals, and a shorthand of bare member names or types. All are found by walking
the text, so a piece that has no model here fails the test that compares the two lists.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from toolgate.contracts import (
    executor_v0,
    gateway_v1,
    ingress_v1,
    orchestrator_v1,
    runner_v1,
    tasks_v1,
)

SEEDS: Final = Path(__file__).parents[2] / "docs" / "contracts" / "seeds"
CODE_LANGUAGES: Final = {"go", "mermaid", "yaml", "ts"}  # programs and types, not data
DATA_LANGUAGES: Final = {"", "json", "http", "bash", "javascript"}

# A piece of data starts at the start of a line or after one of these.
START: Final = re.compile(r"^(?:(?:CLIENT|SERVER) → (?:CLIENT|SERVER): |const \w+ = |.* -d ')?\{")
INLINE: Final = re.compile(r"`(\{[^`]*\})`")
FENCE: Final = re.compile(r"^\s*```(\w*)\s*$")
TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>-?\d+(?:\.\d+)?)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>[{}\[\]:,?|])""",
    re.VERBOSE,
)

# What a bare member name of the gateway's shorthand stands for, where text will not do.
EXAMPLES: Final[dict[str, Any]] = {
    "version": "0.2.0",
    "health": "healthy",
    "uptime": 12.5,
    "lastAt": 1704067200000,
    "cursor": 42,
    "id": 41,
    "type": "tool",
    "time": 1704067200000,
    "status": "healthy",
    "durationMs": 17,
    "metadata": {"requestId": "req_1"},
    "payload": {"anything": [1, None, {"nested": True}]},
    "data": {"anything": [1, None, {"nested": True}]},
    "level": "write",
    "rateLimit": 60,
    "expiresAt": 1704067200000,
}
ACTOR_EXAMPLES: Final = {"id": "device_1"}


@dataclass(frozen=True)
class Piece:
    seed: str  # its number
    line: int  # where the data starts, from 1
    text: str

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.line}"


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks, and the prose between them as blocks of the language `prose`."""
    language, start, lines = "prose", 1, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            lines.append(line)
            continue
        yield Block(language, start, "\n".join(lines))
        language = fence[1] if language == "prose" else "prose"
        start, lines = number + 1, []
    yield Block(language, start, "\n".join(lines))


def closing(text: str, start: int) -> int:
    """The end of the braces that open at `start`; comments and strings are skipped over."""
    depth = 0
    for found in re.finditer(r'//[^\n]*|"(?:[^"\\]|\\.)*"|[{}]', text[start:]):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return start + found.end()
    raise AssertionError("braces that never close")


def pieces() -> Iterator[Piece]:
    for path in sorted(SEEDS.glob("*.txt")):
        seed = path.name[:3]
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "prose":
                for number, line in enumerate(block.text.splitlines(), block.line):
                    for found in INLINE.finditer(line):
                        yield Piece(seed, number, found[1])
            elif block.language in DATA_LANGUAGES:
                yield from data_in(seed, block)
            else:
                assert block.language in CODE_LANGUAGES, f"{path.name}:{block.line}"


def data_in(seed: str, block: Block) -> Iterator[Piece]:
    end = 0
    for line in re.finditer(r"[^\n]*", block.text):
        opens = START.match(line[0])
        if opens is None or line.start() < end:
            continue
        start = line.start() + opens.end() - 1
        end = closing(block.text, start)
        yield Piece(seed, block.line + block.text.count("\n", 0, start), block.text[start:end])


class Shorthand:
    """Reads JavaScript literals, bare member names, and types.

    Variant 0 has every member and the first of each choice; later ones leave out the members with a
    question mark, and take the next choice.
    """

    def __init__(self, text: str, *, variant: int) -> None:
        found = list(TOKEN.finditer(text))
        ends = [0, *(token.end() for token in found)]
        assert [*(token.start() for token in found), len(text)] == ends, "text that no token covers"
        self.tokens = [(token.lastgroup, token[0]) for token in found if token["space"] is None]
        self.variant = variant
        self.optional: set[tuple[str, ...]] = set()

    def read(self) -> Any:
        value = self.value(())
        assert not self.tokens
        return value

    def take(self, mark: str) -> bool:
        if self.tokens and self.tokens[0][1] == mark:
            self.tokens.pop(0)
            return True
        return False

    def value(self, path: tuple[str, ...]) -> Any:
        choices = [self.one(path)]
        while self.take("|"):
            choices.append(self.one(path))
        return choices[self.variant % len(choices)]

    def one(self, path: tuple[str, ...]) -> Any:
        kind, token = self.tokens.pop(0)
        if token == "{":
            return self.object(path)
        if token == "[":
            return self.array(path)
        if kind in {"string", "number"} or token in {"true", "false", "null"}:
            return json.loads(token)
        value = {
            "string": "text",
            "number": 0,
            "boolean": self.variant == 0,
            "object": {"key": "value"},
            "any": ["any", 1],
        }[token]
        if self.take("["):
            assert self.take("]")
            return [value]
        return value

    def object(self, path: tuple[str, ...]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self.take("}"):
            kind, token = self.tokens.pop(0)
            key = json.loads(token) if kind == "string" else token
            here = (*path, key)
            optional = self.take("?")
            if optional:
                self.optional.add(here)
            value = self.value(here) if self.take(":") else example(here)
            if not (optional and self.variant):
                members[key] = value
            self.take(",")
        return members

    def array(self, path: tuple[str, ...]) -> list[Any]:
        items = []
        while not self.take("]"):
            items.append(self.value(path))
            self.take(",")
        return items


def example(path: tuple[str, ...]) -> Any:
    if path[:-1] == ("actor",):
        return ACTOR_EXAMPLES.get(path[-1], path[-1])
    return EXAMPLES.get(path[-1], path[-1])


def readings(piece: Piece) -> list[Any]:
    """The values that a piece of data stands for: one for JSON, three for a shorthand."""
    try:
        return [json.loads(piece.text)]
    except json.JSONDecodeError:
        return [Shorthand(piece.text, variant=variant).read() for variant in range(3)]


MODELS: Final[dict[str, Any]] = {
    "000:21": runner_v1.ExecuteRequest,
    "000:55": runner_v1.ToolResult,
    "000:64": runner_v1.ToolResult,
    "000:76": runner_v1.WrappedResult,
    "000:124": runner_v1.ExecuteRequest,
    "000:130": runner_v1.WrappedResult,
    "001:153": ingress_v1.Hello,
    "001:174": ingress_v1.AgentInvoke,
    "001:195": ingress_v1.ToolResult,
    "001:214": ingress_v1.ApprovalDecision,
    "001:231": ingress_v1.CancelRun,
    "001:632": ingress_v1.SendRequest,
    "001:645": ingress_v1.SendAnswer,
    "001:650": ingress_v1.SendAnswer,
    "001:663": ingress_v1.SessionStatus,
    "001:677": ingress_v1.Health,
    "001:704": ingress_v1.Reconnect,
    "001:941": ingress_v1.Hello,
    "001:942": ingress_v1.HelloAck,
    "001:945": ingress_v1.AgentInvoke,
    "001:946": ingress_v1.RunStarted,
    "001:947": ingress_v1.Delta,
    "001:948": ingress_v1.Delta,
    "001:949": ingress_v1.Delta,
    "001:950": ingress_v1.Done,
    "001:957": ingress_v1.ToolRequest,
    "001:960": ingress_v1.ToolResult,
    "001:963": ingress_v1.Delta,
    "001:970": ingress_v1.ApprovalRequired,
    "001:973": ingress_v1.ApprovalDecision,
    "001:976": ingress_v1.State,
    "002:22": gateway_v1.Health,
    "002:30": gateway_v1.Status,
    "002:46": gateway_v1.EventPage,
    "002:76": gateway_v1.Command[dict[str, Any]],
    "002:93": gateway_v1.Answer,
    "002:126": gateway_v1.SystemCommand,
    "002:141": gateway_v1.SystemCommand,
    "002:165": gateway_v1.McpCommand,
    "002:187": gateway_v1.CapabilityRegister,
    "003:12": executor_v0.RunToolRequest,
    "003:27": executor_v0.RunToolResponse,
    "003:65": executor_v0.RunToolResponse,
    "003:78": executor_v0.RunToolResponse,
    "004:38": tasks_v1.Run,
    "004:65": tasks_v1.ArtifactChunk,
    "004:88": tasks_v1.RunTaskTemplate,
    "004:115": tasks_v1.StartedRun,
    "004:127": tasks_v1.StartedRun,
    "004:150": tasks_v1.GetTaskRun,
    "004:160": tasks_v1.ListTaskRuns,
    "004:189": tasks_v1.RuntimeProfile,
}

# The seed's own types, with a question mark on what may be missing.
TYPED: Final = ["003:12", "003:27"]

UNIONS: Final[list[tuple[Any, Callable[[bytes], Any]]]] = [
    (ingress_v1.AnyClientMessage, ingress_v1.decode_client),
    (ingress_v1.AnyServerMessage, ingress_v1.decode_server),
]

PIECES: Final = {piece.name: piece for piece in pieces()}


def as_text(value: Any) -> str:
    """JSON in one spelling, so that 1, 1.0 and true are told apart."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def test_every_piece_of_data_in_the_seeds_has_a_model_and_every_model_its_piece() -> None:
    assert sorted(PIECES) == sorted(MODELS)


def test_no_brace_of_the_seeds_data_blocks_is_left_unread() -> None:
    left = []
    for path in sorted(SEEDS.glob("*.txt")):
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language in DATA_LANGUAGES:
                rest = block.text
                for piece in data_in(path.name[:3], block):
                    rest = rest.replace(piece.text, "", 1)
                left += [line for line in rest.splitlines() if "{" in line]
    assert left == ["function reconnect(attempt) {"]


@pytest.mark.requirement(
    "000/answer/direct-round-trip",
    "000/answer/wrapped-round-trip",
    "000/request/body-round-trip",
    "001/messages/round-trip-hello",
    "001/messages/round-trip-agent-invoke",
    "001/messages/round-trip-tool-result",
    "001/messages/round-trip-approval-decision",
    "001/messages/round-trip-cancel-run",
    "001/messages/round-trip-send",
    "001/messages/round-trip-appendix",
    "002/mcp/round-trip",
    "002/system/round-trip",
    "003/response/deny-example",
    "003/response/allow-example",
    "004/artifacts/chunk-round-trip",
    "004/list/request-round-trip",
    "004/profile/round-trip",
    "004/run/request-round-trip",
    "004/run/answers-round-trip",
    "004/run-object/round-trip",
)
@pytest.mark.parametrize("name", sorted(PIECES))
def test_a_piece_of_a_seed_comes_back_the_same_from_its_model(name: str) -> None:
    for value in readings(PIECES[name]):
        message = msgspec.json.decode(json.dumps(value).encode(), type=MODELS[name])
        assert as_text(json.loads(msgspec.json.encode(message))) == as_text(value)


@pytest.mark.parametrize(
    ("name", "decode"),
    [
        (name, decode)
        for name, model in MODELS.items()
        for union, decode in UNIONS
        if model in union.__args__
    ],
)
def test_a_message_of_the_ingress_is_known_by_its_type(
    name: str, decode: Callable[[bytes], Any]
) -> None:
    assert type(decode(json.dumps(readings(PIECES[name])[0]).encode())) is MODELS[name]


@pytest.mark.parametrize(
    "name",
    [name for name, model in MODELS.items() if model in ingress_v1.AnySessionEvent.__args__],
)
def test_an_event_of_the_appendix_is_also_an_event_of_the_orchestrators_stream(name: str) -> None:
    value = readings(PIECES[name])[0]
    event = orchestrator_v1.decode_event(json.dumps(value).encode())
    assert type(event) is orchestrator_v1.EVENTS[value["type"]]
    assert as_text(json.loads(orchestrator_v1.encode(event))) == as_text(value)


@pytest.mark.parametrize("name", TYPED)
def test_a_member_may_be_left_out_exactly_where_the_seed_has_a_question_mark(name: str) -> None:
    reader = Shorthand(PIECES[name].text, variant=0)
    whole = reader.read()
    for path in sorted(paths_in(whole)):
        without = json.dumps(leaving_out(whole, path)).encode()
        if path in reader.optional:
            msgspec.json.decode(without, type=MODELS[name])
        elif path != ("args", "key"):  # ours, to show that there may be something
            with pytest.raises(msgspec.ValidationError, match=f"`{path[-1]}`"):
                msgspec.json.decode(without, type=MODELS[name])


def paths_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield (*path, key)
            yield from paths_in(member, (*path, key))


def leaving_out(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {name: member for name, member in value.items() if name != key}
    return value | {key: leaving_out(value[key], tuple(rest))}


def test_the_reconnect_settings_are_the_seeds() -> None:
    assert msgspec.to_builtins(ingress_v1.RECONNECT) == readings(PIECES["001:704"])[0]
