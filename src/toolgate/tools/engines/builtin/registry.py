"""The built-in tools, by name. A new one is a module of its own and a line here."""

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

BUILT_IN: Final[dict[str, BuiltIn[Any]]] = {
    module.TOOL.tool.name: module.TOOL for module in _MODULES
}
