"""What the OpenAPI document says, for a person: no script, nothing from elsewhere."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolgate.contracts import gateway_v1 as wire
from toolgate.surfaces.gateway.routes import Route

DOCS_PATH: Final = "/docs"
_QUOTED: Final = re.compile(r"`([^`]+)`")

Schemas = Mapping[str, Any]


def docs_page(routes: Sequence[Route], document: Mapping[str, Any]) -> str:
    schemas: Schemas = document["components"]["schemas"]
    rows = "".join(
        _row(route, document["paths"][route.path][route.method.lower()], schemas)
        for route in routes
    )
    shapes = "".join(
        _shape(name, schema, schemas) for name, schema in schemas.items() if not _is_enum(schema)
    )
    codes = "".join(
        f"<tr><td>{_code(code)}</td><td>{told.status}</td><td>{_prose(told.meaning)}</td>"
        f"<td>{_prose(told.action)}</td></tr>"
        for code, told in wire.ERROR_CODES.items()
    )
    headers = "".join(
        f"<tr><td>{_code(name)}</td><td>{_prose(meaning)}</td></tr>"
        for name, meaning in wire.HEADERS.items()
    )
    version = html.escape(document["info"]["version"])
    return _PAGE.format(version=version, rows=rows, shapes=shapes, codes=codes, headers=headers)


def _row(route: Route, operation: Mapping[str, Any], schemas: Schemas) -> str:
    lines = [_prose(route.summary)]
    lines += [
        f"<small>{_code(f'?{one.name}')} {_prose(one.meaning)}</small>" for one in route.query
    ]
    if body := operation.get("requestBody"):
        lines.append(f"<small>takes {_type(_json(body), schemas)}</small>")
    lines.append(f"<small>answers {_answer(route, operation, schemas)}</small>")
    return (
        f"<tr><td>{_code(route.key)}</td><td>{'<br>'.join(lines)}</td>"
        f"<td>{route.access}</td><td>{_code(route.v2) if route.v2 else ''}</td></tr>"
    )


def _answer(route: Route, operation: Mapping[str, Any], schemas: Schemas) -> str:
    if route.stream:
        return "server-sent events"
    schema = _json(operation["responses"]["200"])
    if route.bare:
        return _type(schema, schemas)
    data = _type(schema["allOf"][1]["properties"]["data"], schemas)
    later = f"; with 202, {_link('CommandState', schemas)}" if route.command is not None else ""
    return f"{_code('data')}: {data}{later}"


def _json(message: Mapping[str, Any]) -> Any:
    return message["content"]["application/json"]["schema"]


def _shape(name: str, schema: Mapping[str, Any], schemas: Schemas) -> str:
    rows = "".join(
        f"<tr><td>{_code(member)}</td><td>{_type(of, schemas)}</td>"
        f"<td>{_presence(of, is_required=member in schema['required'])}</td></tr>"
        for member, of in schema["properties"].items()
    )
    return (
        f'<h3 id="{html.escape(name)}">{html.escape(schema["title"])}</h3>'
        f"<p>{_prose(schema.get('description', ''))}</p><table>{rows}</table>"
    )


def _presence(schema: Mapping[str, Any], *, is_required: bool) -> str:
    if is_required:
        return "required"
    return f"else {_code(json.dumps(schema['default']))}" if "default" in schema else ""


def _type(schema: Mapping[str, Any], schemas: Schemas) -> str:
    """A schema in words; another model is a link, unless it is only a choice of words."""
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            is_enum = _is_enum(schemas[name])
            return _type(schemas[name], schemas) if is_enum else _link(name, schemas)
        case {"anyOf": choices}:
            return " or ".join(_type(one, schemas) for one in choices)
        case {"enum": values}:
            return " or ".join(_code(str(value)) for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_type(items, schemas)}"
        case {"type": "object", "additionalProperties": of}:
            return f"object of {_type(of, schemas)}"
        case {"type": str(kind), "title": str(title)}:
            return f"{kind}, {html.escape(title)}"
        case {"type": str(kind)}:
            return kind
        case _:
            return "anything"


def _is_enum(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema


def _link(name: str, schemas: Schemas) -> str:
    return f'<a href="#{html.escape(name)}">{html.escape(schemas[name]["title"])}</a>'


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _prose(text: str) -> str:
    return _QUOTED.sub(r"<code>\1</code>", html.escape(text))


_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Toolgate gateway</title><style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ max-width: 64rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; vertical-align: top }}
h3 {{ margin: 2rem 0 0 }} h3 + p {{ margin: 0 }} :target {{ background: #8884 }}
section table {{ table-layout: fixed }}
@media (max-width: 40rem) {{ code {{ overflow-wrap: anywhere }} td, th {{ padding: .3rem .2rem }} }}
</style><h1>Toolgate gateway {version}</h1>
<p>The whole of it, for machines: <a href="/openapi.json">openapi.json</a>.</p>
<h2>Routes</h2><p>Bodies are JSON. Where an answer is said to have <code>data</code>, it is an
<a href="#Answer">Answer</a> around that.</p>
<table><tr><th>route<th>what<th>who<th>on /v2/ws</tr>{rows}</table>
<h2>What is in bodies and answers</h2><section>{shapes}</section>
<h2>Error codes</h2><table><tr><th>code<th>status<th>meaning<th>what to do</tr>{codes}</table>
<h2>Headers</h2><table>{headers}</table></html>
"""
