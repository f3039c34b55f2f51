"""The OpenAPI document of a service."""

from typing import Any, Final

from scriba import __version__
from scriba.pipelines.inventory.model import MAX_LINES, MAX_NAME, MAX_REASON, MAX_STOCK, Kind

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}

_EVENT: Final = {
    "type": "object",
    "properties": {
        "type": {"enum": ["StockReceived", "StockDecreased", "StockAdjusted"]},
        "item": _TEXT,
        "change": _NUMBER,
        "stock": {"type": "integer", "minimum": 0, "description": "what results from the change"},
        "version": {"type": "integer", "minimum": 1, "description": "of the item, without gaps"},
        "command": _TEXT,
        "sequence": {"type": "integer", "description": "of the command, over all items"},
        "line": _NUMBER,
        "lines": _NUMBER,
        "at": {"type": "integer", "description": "milliseconds since 1970"},
        "reason": _TEXT,
    },
}
_OFFSET: Final = {
    "type": "object",
    "properties": {"topic": _TEXT, "partition": _NUMBER, "offset": _NUMBER},
}
_AS_OF: Final = {
    "type": "object",
    "description": "up to where the topic was read, exclusive",
    "properties": {
        "topic": _TEXT,
        "partition": _NUMBER,
        "end_offset": _NUMBER,
        "verified_seconds_ago": {"type": "number"},
    },
}
_STOCK: Final = {
    "type": "object",
    "properties": {
        "item": _TEXT,
        "stock": _NUMBER,
        "version": _NUMBER,
        "event": {"$ref": "#/components/schemas/Event"},
        "offset": {"$ref": "#/components/schemas/Offset"},
        "as_of": {"$ref": "#/components/schemas/AsOf"},
    },
}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "error": _TEXT,
        "outcome": {
            "enum": ["none", "unknown"],
            "description": "of a command: nothing was written, or it is not known",
        },
    },
}
_REFUSAL: Final = {
    "type": "object",
    "properties": {
        "outcome": {"const": "refused"},
        "command": _TEXT,
        "why": _TEXT,
        "shortages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"item": _TEXT, "stock": _NUMBER, "change": _NUMBER},
            },
        },
    },
}
_ACCEPTANCE: Final = {
    "type": "object",
    "properties": {
        "outcome": {"const": "accepted"},
        "command": _TEXT,
        "repeated": {"type": "boolean", "description": "decided before, and told again"},
        "sequence": _NUMBER,
        "events": {"type": "array", "items": {"$ref": "#/components/schemas/Event"}},
    },
}


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Inventory", "version": __version__},
        "paths": {
            "/stock": _get("items by name, a page at a time", _page("items", "Stock"), _LISTING),
            "/stock/{item}": _get("what is there of an item", _ref("Stock"), [_in_path("item")]),
            "/history/{item}": _get(
                "everything that happened to an item",
                _page("events", "Event"),
                [_in_path("item"), *_LISTING],
            ),
            "/commands/{id}": _get(
                "the outcome of a command that was accepted", _ref("Acceptance"), [_in_path("id")]
            ),
            "/health": _get("200 when look-ups are answered", {"type": "object"}, []),
            "/metrics": {"get": {"summary": "for Prometheus", "responses": {"200": _plain()}}},
            "/openapi.json": _get("this document", {"type": "object"}, []),
            **{f"/{kind}": {"post": _command(kind)} for kind in Kind},
        },
        "components": {
            "schemas": {
                "Event": _EVENT,
                "Offset": _OFFSET,
                "AsOf": _AS_OF,
                "Stock": _STOCK,
                "Error": _ERROR,
                "Refusal": _REFUSAL,
                "Acceptance": _ACCEPTANCE,
            }
        },
    }


_LISTING: Final = [
    {"name": "after", "in": "query", "schema": _TEXT, "description": "`next` of the last page"},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 1000}},
]
_FRESH: Final = {
    "name": "fresh",
    "in": "query",
    "schema": {"type": "boolean"},
    "description": "show everything that was committed before the question",
}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _page(field: str, schema: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field: {"type": "array", "items": _ref(schema)}, "next": {}, "as_of": {}},
    }


def _plain() -> dict[str, Any]:
    return {"description": "done", "content": {"text/plain": {"schema": _TEXT}}}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _NAME}


def _get(summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "get": {
            "summary": summary,
            "parameters": [*parameters, _FRESH] if parameters else [],
            "responses": {
                "200": _answer("done", schema),
                "404": _answer("there is no such thing", _ref("Error")),
                "503": _answer("not caught up; nothing is shown", _ref("Error")),
            },
        }
    }


def _command(kind: Kind) -> dict[str, Any]:
    line: dict[str, Any] = {"item": _NAME, "quantity": {"type": "integer", "maximum": MAX_STOCK}}
    needed = ["item", "quantity"]
    if kind is Kind.ADJUST:
        line["counted"] = {"type": "integer", "minimum": 0, "maximum": MAX_STOCK}
        needed = ["item"]
    lines = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_LINES,
        "items": {"type": "object", "properties": line, "required": needed},
    }
    body = {
        "type": "object",
        "properties": {
            "id": {**_NAME, "description": "repeating it does nothing twice"},
            "lines": lines,
            "reason": {"type": "string", "maxLength": MAX_REASON},
        },
        "required": ["id", "lines"],
    }
    return {
        "summary": f"{kind} all lines, or none",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": _answer("accepted, now or before", _ref("Acceptance")),
            "400": _answer("not a command", _ref("Error")),
            "409": _answer("refused; nothing was written", _ref("Refusal")),
            "503": _answer("no writer, or the outcome is unknown", _ref("Error")),
        },
    }
