"""The built-in tools, by name. A new one is a module of its own and a line here."""

from dataclasses import replace
from typing import Any, Final

from toolgate.tools.definitions import BuiltIn
from toolgate.tools.engines.builtin import (
    echo,
    exec,
    file_list,
    file_read,
    http_fetch,
    kv_get,
    kv_set,
    math_add,
    shell,
    text_upper,
    web_fetch,
)

_MODULES: Final = (
    echo, exec, file_list, file_read, http_fetch, kv_get, kv_set, math_add, shell, text_upper,
    web_fetch,
)  # fmt: skip

_SYSTEM_EXEC: Final = replace(exec.TOOL, tool=replace(exec.TOOL.tool, name="system.exec"))

BUILT_IN: Final[dict[str, BuiltIn[Any]]] = {
    built_in.tool.name: built_in
    for built_in in (*(module.TOOL for module in _MODULES), _SYSTEM_EXEC)
}
