"""The gateway's OpenAPI 3.1 document, made from the wire's models and the table of routes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolgate.contracts import gateway_v1 as wire
from toolgate.contracts.wire import MAX_ID_CHARS
from toolgate.surfaces.gateway.routes import Access, Route

OPENAPI_PATH: Final = "/openapi.json"
REF: Final = "#/components/schemas/{name}"
ID_PATTERN: Final = r"^[^\u0000-\u001f\u007f]+$"

_SECURITY: Final[Mapping[Access, list[dict[str, list[str]]]]] = {
    Access.ANYONE: [],
    Access.CALLER: [{"deviceId": [], "deviceToken": []}, {"bearer": []}],
    Access.READER: [{"bearer": []}, {"deviceId": [], "deviceToken": []}],
    Access.TRUSTED: [{"bearer": []}],
    Access.APPROVER: [{"bearer": []}, {"deviceId": [], "deviceToken": []}],
    Access.OPERATOR: [{"bearer": []}],
}
_RATE_HEADERS: Final = (
    wire.HEADER_RATE_LIMIT,
    wire.HEADER_RATE_REMAINING,
    wire.HEADER_RATE_RESET,
)
_MEANINGS: Final = {
    200: "It is done.",
    202: "It waits for an approval, or its run goes on.",
    400: "It cannot be understood.",
    401: "No token, a wrong one, or not paired.",
    403: "Not allowed.",
    404: "There is no such thing.",
    409: "The Idempotency-Key belongs to another request.",
    410: "The cursor is dead.",
    413: "Larger than 1 MB.",
    429: "Too many commands.",
    500: "The gateway failed.",
    501: "Nothing here does that.",
    502: "A host, server or runner that it called failed.",
    503: "It cannot write to its disk.",
}
COMMAND_STATUSES: Final = (200, 202, 400, 401, 403, 409, 413, 429, 500, 501, 502, 503)


def document(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    models = _models(routes)
    schemas, components = msgspec.json.schema_components(models, ref_template=REF)
    by_model = dict(zip(models, schemas, strict=True))
    known = {operation_id(route) for route in routes}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, by_model, known)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toolgate gateway",
            "version": version,
            "description": "The HTTP control plane: pairing, commands, capabilities, events.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: _tighten(schema) for name, schema in components.items()},
            "securitySchemes": _schemes(),
            "headers": {
                name: {"description": meaning, "schema": {"type": "string"}}
                for name, meaning in wire.HEADERS.items()
            },
        },
    }


def _models(routes: Sequence[Route]) -> list[Any]:
    models: list[Any] = [wire.Answer]
    for route in routes:
        for model in (route.takes, route.answers):
            if model is not None and model not in models:
                models.append(model)
    return models


def _operation(route: Route, schemas: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "parameters": _parameters(route),
        "responses": {
            str(status): _response(route, status, schemas, known) for status in _statuses(route)
        },
        "security": _SECURITY[route.access],
    }
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _tighten(schemas[route.takes])}},
        }
    return operation


def operation_id(route: Route) -> str:
    words = [word.strip("{}") for word in route.path.replace("-", "/").split("/") if word]
    return route.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _statuses(route: Route) -> list[int]:
    if route.command is not None:
        return list(COMMAND_STATUSES)
    found = {*route.statuses}
    if route.access is not Access.ANYONE:
        found |= {401, 403}
    if route.takes is not None:
        found |= {400, 413}
    if route.query or "{" in route.path:
        found.add(400)
    if route.access in (Access.CALLER, Access.READER, Access.APPROVER):
        found.add(429)  # too many devices wait to be paired
    return sorted(found | {500, 503})


def _response(
    route: Route, status: int, schemas: Mapping[Any, Any], known: Collection[str]
) -> dict[str, Any]:
    answer = schemas[wire.Answer]
    data = schemas[route.answers] if route.answers is not None else {}
    if status >= 400:
        schema: Any = {
            "allOf": [answer, {"properties": {"ok": {"const": False}}, "required": ["error"]}]
        }
    elif route.bare:
        schema = data
    else:
        schema = {"allOf": [answer, {"properties": {"ok": {"const": True}, "data": data}}]}
    content = {"application/json": {"schema": schema}}
    if route.stream and status == 200:
        content = {"text/event-stream": {"schema": {"type": "string"}}}
    elif status < 400 and route.media_type != "application/json":
        content = {route.media_type: {"schema": {"type": "string", "format": "binary"}}}
    response: dict[str, Any] = {"description": _MEANINGS[status], "content": content}
    headers = _response_headers(route, status)
    if headers:
        response["headers"] = headers
    links = {
        name: link for name, link in _links(route, status).items() if link["operationId"] in known
    }
    if links:
        response["links"] = links
    return response


def _response_headers(route: Route, status: int) -> dict[str, Any]:
    names: list[str] = []
    if route.command is not None and status not in (401, 413):
        names += _RATE_HEADERS
    if status == 429:
        names.append(wire.HEADER_RETRY_AFTER)
    if route.path == "/pairing/approve" and status == 200:
        names.append(wire.HEADER_DEVICE_TOKEN)
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _link(operation: str, *, body: str = "", **parameters: str) -> dict[str, Any]:
    """`body` and the parameters say where in the exchange a value is found."""
    link: dict[str, Any] = {"operationId": operation}
    if body:
        link["requestBody"] = {"deviceId": f"$response.body#/data/{body}"}
    if parameters:
        link["parameters"] = parameters
    return link


_TARGET: Final = "$response.body#/data/targetId"
_LINKS: Final[Mapping[tuple[str, int], dict[str, dict[str, Any]]]] = {
    ("GET /pairing/pending", 200): {
        "approve": _link("postPairingApprove", body="pending/0/deviceId"),
    },
    ("POST /pairing/approve", 200): {"revoke": _link("postPairingRevoke", body="deviceId")},
    ("POST /tokens", 200): {"end": _link("deleteTokensName", name="$response.body#/data/name")},
    ("GET /events/poll", 200): {"next": _link("getEventsPoll", since="$response.body#/cursor")},
    ("GET /approvals", 200): {
        "decide": _link(
            "postApprovalsApprovalIdDecide", approvalId="$response.body#/data/items/0/approvalId"
        ),
    },
    ("PUT /execution-targets/{targetId}", 200): {
        "read": _link("getExecutionTargetsTargetId", targetId=_TARGET),
        "delete": _link("deleteExecutionTargetsTargetId", targetId=_TARGET),
    },
}
_COMMAND_LINKS: Final[Mapping[int, dict[str, dict[str, Any]]]] = {
    200: {"state": _link("getCommandRequestId", requestId="$request.header.X-Request-Id")},
    202: {
        "state": _link("getCommandRequestId", requestId="$response.body#/data/requestId"),
        "decide": _link(
            "postApprovalsApprovalIdDecide", approvalId="$response.body#/data/approvalId"
        ),
    },
}


def _links(route: Route, status: int) -> dict[str, dict[str, Any]]:
    """How one answer leads to the next request."""
    if route.command is not None:
        return _COMMAND_LINKS.get(status, {})
    return _LINKS.get((route.key, status), {})


def _parameters(route: Route) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": word.strip("{}"),
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for word in route.path.split("/")
        if word.startswith("{")
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.meaning, "schema": dict(one.schema)}
        for one in route.query
    ]
    if route.command is not None:
        parameters += [
            {
                "name": name,
                "in": "header",
                "description": wire.HEADERS[name],
                "schema": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
            }
            for name in (wire.HEADER_IDEMPOTENCY_KEY, wire.HEADER_REQUEST_ID)
        ]
    return parameters


def _schemes() -> dict[str, Any]:
    return {
        "deviceId": {"type": "apiKey", "in": "header", "name": wire.HEADER_DEVICE_ID},
        "deviceToken": {"type": "apiKey", "in": "header", "name": wire.HEADER_DEVICE_TOKEN},
        "gatewayToken": {"type": "apiKey", "in": "header", "name": wire.HEADER_GATEWAY_TOKEN},
        "bearer": {"type": "http", "scheme": "bearer"},
    }


def _tighten(schema: Any) -> Any:
    """An id holds no control signs: the models say so by their length alone."""
    if isinstance(schema, list):
        return [_tighten(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {name: _tighten(value) for name, value in schema.items()}
    if tight.get("type") == "string" and tight.get("maxLength") == MAX_ID_CHARS:
        tight["pattern"] = ID_PATTERN
    return tight
