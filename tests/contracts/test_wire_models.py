"""Every model of every contract, drawn from its own types: it survives the wire, and refuses what it is not."""

import functools
import json
import string
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Annotated, Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from toolgate.contracts import (
    executor_v0,
    gateway_v1,
    ingress_v1,
    orchestrator_v1,
    runner_v1,
    tasks_v1,
    wire,
)

MODULES: Final = [runner_v1, ingress_v1, orchestrator_v1, gateway_v1, executor_v0, tasks_v1]
IN_SITU: Final = {gateway_v1.Command}  # generic: only its four uses are on the wire
USES: Final = [
    gateway_v1.AgentCommand,
    gateway_v1.ToolCommand,
    gateway_v1.SystemCommand,
    gateway_v1.McpCommand,
]


def models_of(module: ModuleType) -> Iterator[Any]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, wire.Wire) and value not in IN_SITU:
            own = value.__module__ == module.__name__
            yield from [value] if own else []
    if module is gateway_v1:
        yield from USES


MODELS: Final = [model for module in MODULES for model in models_of(module)]
EXAMPLES: Final = pytest.mark.soak("properties", rounds=40, short=5)  # of every model
FEW_EXAMPLES: Final = pytest.mark.soak("properties", rounds=5, short=2)

# What a pattern lets through, by the pattern: text drawn from a pattern would be slow.
TIMES: Final = st.integers(0, 4_102_444_800_000).map(wire.to_iso_ms)
PATH_TEXT: Final = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=128)

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


def strategy(of: inspect.Type) -> st.SearchStrategy[Any]:
    """JSON values that the type accepts."""
    match of:
        case inspect.Metadata():
            return strategy(of.type)
        case inspect.AnyType():
            return anything
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(of.ge if of.ge is not None else -(2**53), of.le or 2**53)
        case inspect.FloatType():
            return st.floats(of.ge, of.le, allow_nan=False, allow_infinity=False)
        case inspect.StrType(pattern=str() as pattern):
            fitting = TIMES if "T[0-9]" in pattern else PATH_TEXT
            return fitting.filter(lambda text: fits(text, of))
        case inspect.StrType():
            return st.text(min_size=of.min_length or 0, max_size=max(12, of.min_length or 0))
        case inspect.EnumType():
            return st.sampled_from([member.value for member in of.cls])
        case inspect.LiteralType():
            return st.sampled_from(of.values)
        case inspect.ListType():
            return st.lists(strategy(of.item_type), min_size=of.min_length or 0, max_size=2)
        case inspect.DictType():
            return st.dictionaries(st.text(max_size=4), strategy(of.value_type), max_size=2)
        case inspect.UnionType():
            return st.one_of([strategy(one) for one in of.types])
        case inspect.StructType():
            return struct(of)
        case _:
            raise AssertionError(f"no strategy for {of}")


def struct(of: inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    required = {field.encode_name: strategy(field.type) for field in of.fields if field.required}
    if of.tag is not None:
        required[str(of.tag_field)] = st.just(of.tag)
    optional = {
        field.encode_name: strategy(field.type) for field in of.fields if not field.required
    }
    members = st.fixed_dictionaries(required, optional=optional)
    return members.filter(lambda value: fits(value, of.cls)) if has_rules(of.cls) else members


def has_rules(cls: Any) -> bool:
    return hasattr(cls, "__post_init__")


def fits(value: Any, of: Any) -> bool:
    try:
        msgspec.convert(value, meta_of(of) if isinstance(of, inspect.StrType) else of)
    except msgspec.ValidationError:
        return False
    return True


def meta_of(of: inspect.StrType) -> Any:
    return Annotated[str, msgspec.Meta(pattern=of.pattern)]


KINDS: Final[dict[str, Any]] = {
    "null": None,
    "bool": True,
    "int": -7,
    "float": 1.5,
    "str": "\N{PILE OF POO}",
    "array": [None],
    "object": {"\N{PILE OF POO}": None},
}


def kinds(of: inspect.Type) -> set[str]:
    """The kinds of JSON value that the type may accept."""
    match of:
        case inspect.Metadata():
            return kinds(of.type)
        case inspect.AnyType():
            return set(KINDS)
        case inspect.NoneType():
            return {"null"}
        case inspect.BoolType():
            return {"bool"}
        case inspect.IntType():
            return {"int"}
        case inspect.FloatType():
            return {"int", "float"}
        case inspect.StrType() | inspect.EnumType() | inspect.LiteralType():
            return {"str"}
        case inspect.ListType():
            return {"array"}
        case inspect.DictType() | inspect.StructType():
            return {"object"}
        case inspect.UnionType():
            return set().union(*(kinds(one) for one in of.types))
        case _:
            raise AssertionError(f"no kinds for {of}")


@functools.cache
def info(model: Any) -> inspect.StructType:
    found = inspect.type_info(model)
    assert isinstance(found, inspect.StructType)
    return found


@functools.cache
def messages(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    return struct(info(model))


def for_each_model(rounds: int, check: Callable[[Any, dict[str, Any]], None]) -> None:
    """Check so many messages of every model; a failure names the model."""
    for model in MODELS:
        try:
            check_model(model, rounds, check)
        except BaseException as error:
            error.add_note(f"model: {model}")
            raise


def check_model(model: Any, rounds: int, check: Callable[[Any, dict[str, Any]], None]) -> None:
    @settings(max_examples=rounds)
    @given(messages(model))
    def holds(value: dict[str, Any]) -> None:
        check(model, value)

    holds()


@EXAMPLES
def test_a_message_survives_the_wire(rounds: int) -> None:
    def survives(model: Any, value: dict[str, Any]) -> None:
        message = msgspec.convert(value, model)
        raw = msgspec.json.encode(message)
        again = msgspec.json.decode(raw, type=model)
        assert again == message
        assert msgspec.json.encode(again) == raw
        assert json.loads(raw).items() >= required_part(value, info(model)).items()

    for_each_model(rounds, survives)


def required_part(value: dict[str, Any], of: inspect.StructType) -> dict[str, Any]:
    """The required members whose own members cannot be left out or filled in."""
    plain = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.AnyType)
    return {
        field.encode_name: value[field.encode_name]
        for field in of.fields
        if field.required and isinstance(field.type, plain)
    }


@FEW_EXAMPLES
def test_a_member_it_does_not_know_changes_nothing(rounds: int) -> None:
    def ignored(model: Any, value: dict[str, Any]) -> None:
        more = value | {"x-unknown": [1, {"y": None}]}
        assert msgspec.convert(more, model) == msgspec.convert(value, model)

    for_each_model(rounds, ignored)


@FEW_EXAMPLES
def test_a_missing_member_is_named(rounds: int) -> None:
    def named(model: Any, value: dict[str, Any]) -> None:
        for field in info(model).fields:
            if field.required:
                less = {key: item for key, item in value.items() if key != field.encode_name}
                assert refused(less, model) == f"$.{field.encode_name}"

    for_each_model(rounds, named)


@FEW_EXAMPLES
def test_a_member_of_the_wrong_type_is_named(rounds: int) -> None:
    def named(model: Any, value: dict[str, Any]) -> None:
        for field in info(model).fields:
            for kind in sorted(set(KINDS) - kinds(field.type)):
                wrong = value | {field.encode_name: KINDS[kind]}
                assert refused(wrong, model) == f"$.{field.encode_name}"

    for_each_model(rounds, named)


def refused(value: Any, model: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(json.dumps(value).encode(), type=model)
    return wire.field_of(error.value)
