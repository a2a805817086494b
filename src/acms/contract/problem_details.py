"""Errors over HTTP: one table of codes and statuses, errors as `application/problem+json` and back (RFC 9457)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acms import errors
from acms.errors import (
    ACMSError,
    FitError,
    JobFailedError,
    MergeConflictError,
    PermissionDeniedError,
    ProviderError,
    TokenBudgetExceededError,
    ValidationError,
)
from acms.log.merges import MergeConflict
from acms.model import Json
from acms.nouns import decode_noun, encode_noun

MEDIA_TYPE = "application/problem+json"
"""Media type of an error."""

STATUS_BY_CODE: Mapping[str, int] = {
    "ACMS": 500,
    "CONFIGURATION": 409,
    "MISSING_EXTRA": 501,
    "VALIDATION": 400,
    "PAYLOAD": 400,
    "TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA": 415,
    "NOT_ACCEPTABLE": 406,
    "METHOD_NOT_ALLOWED": 405,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "RATE_LIMITED": 429,
    "DEADLINE": 503,
    "NOT_FOUND": 404,
    "SESSION_NOT_FOUND": 404,
    "EPISODE_NOT_FOUND": 404,
    "ENTRY_NOT_FOUND": 404,
    "CONFLICT": 409,
    "MERGE_CONFLICT": 409,
    "PRECONDITION": 412,
    "IDEMPOTENCY_MISMATCH": 422,
    "LEASE_LOST": 409,
    "GONE": 410,
    "EXPIRED": 410,
    "LEGAL_HOLD": 423,
    "JOB_FAILED": 409,
    "FORK_DEPTH": 422,
    "BUDGET_EXCEEDED": 422,
    "FIT": 422,
    "STORAGE": 500,
    "STORAGE_BUSY": 503,
    "STORAGE_FULL": 507,
    "STORAGE_UNAVAILABLE": 503,
    "UNREACHABLE": 503,
    "STORAGE_READ_ONLY": 503,
    "CORRUPT_RECORD": 500,
    "SCHEMA_VERSION": 503,
    "HANDLE": 503,
    "VECTORS_UNAVAILABLE": 503,
    "PROVIDER": 502,
}
"""Status of every code."""

TITLE_BY_STATUS: Mapping[int, str] = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    410: "Gone",
    412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type",
    422: "Cannot be done",
    423: "Locked",
    429: "Too many requests",
    500: "Internal error",
    501: "Not installed",
    502: "A provider failed",
    503: "Unavailable",
    507: "Storage full",
}
"""Titles of the statuses, independent of the occurrence."""

PROGRAM_TEXT = re.compile(
    r"\w\(|\w=|\bacms[ .][a-z]|(^|\s)--[a-z]|\b[a-z]{2,}_[a-z]+|\bPrompt\b|event loop|os\.fork"
)
"""Words of Python code or of a shell, but no ids (m_…). Options with such words are useless to a caller over HTTP."""

_TRANSLATIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), translation)
    for pattern, translation in (
        ("choose another session_id", "choose another key"),
        (r'merge with (strategy)="(ours|theirs)" to .*', r'send "\1": "\2"'),
        (
            "merge with dry_run=True to see all of them, .*",
            "GET /api/v1/contexts/{contextId}/merge shows all of them: resolve them on either side, and merge again",
        ),
        (
            r"make this session private first: set_private\(\)",
            'make this context private first: PATCH {"private": true}',
        ),
        (r'state it with (scope)="(session)"', r'send "\1": "\2"'),
        ("fork one of them from the other", "fork one context from the other"),
        ("tag it with move=True", 'send "move": true'),
        ("tag a version of this log with move=True", 'tag a version of this log, with "move": true'),
        (
            r"hand the whole list to sync\(messages\): (.*)",
            r"POST /api/v1/contexts/{contextId}/sync with the whole list: \1",
        ),
        (
            r"retract\(id\)(.*)",
            r"POST /api/v1/contexts/{contextId}/entries/{entryId}/retract\1",
        ),
        (
            r'retract\("(\S+)"\)(.*)',
            r"POST /api/v1/contexts/{contextId}/entries/\1/retract\2",
        ),
        (
            r"undo\((\d+)\) first",
            r"POST /api/v1/contexts/{contextId}/compactions/\1/undo first, if v\1 is a compaction",
        ),
        (
            r"compactions\(\) (lists them .*)",
            r"GET /api/v1/contexts/{contextId}/compactions \1",
        ),
        ("pass `next_after` of a page", "pass nextCursor of a page as cursor"),
        (
            r"open the session in a namespace of its user or project: .*",
            "ask a context whose namespace is that of a user or a project",
        ),
        ('insert="append" stores it at the end', '"insert": "append" stores it at the end'),
        (
            r"window\(budget\) shows the newest messages",
            "GET /api/v1/contexts/{contextId}/window shows the newest messages",
        ),
        ("give tool_call_id", "give toolCallId"),
        (r"give parts=\[ToolResult\(…\)\]", "give parts of the type of a tool's result"),
        ("give a text, tool_calls, tool_call_id or parts", "give content, toolCalls, toolCallId or parts"),
        (
            r"copy the context instead of forking it: .*",
            "POST /api/v1/contexts/{contextId}/copy copies it instead",
        ),
        (
            r"acms compact policy set --no-hold(?: --namespace .*)? lifts it",
            'PATCH /api/v1/namespaces/{namespace}/policy {"legalHold": false} lifts it',
        ),
        (
            r"storage\.sessions\(\) lists the sessions of all namespaces",
            "a path takes the id of a context: GET /api/v1/contexts with the parameter key finds it by its key",
        ),
        (
            "acms sessions --all --deleted lists them",
            "GET /api/v1/contexts with the parameter deleted lists them",
        ),
        ("acms jobs lists them", "GET /api/v1/jobs lists them"),
        (r"acms jobs retry (\S+)", r"POST /api/v1/jobs/\1/retry"),
        (r"acms jobs cancel (\S+)", r"POST /api/v1/jobs/\1/cancel"),
        (r"add a message that is required, such as user\(…\)", "give system, developer or user"),
        (
            r"let messages directly in (\S+) shrink, .*: they take (\d+) tokens",
            r"shorten \1: it takes \2 tokens",
        ),
        (r"give (\S+) a priority and a strategy: it takes (\d+) tokens", r"shorten \1: it takes \2 tokens"),
    )
)
"""The engine's options as patterns, each with its equivalent over HTTP."""
_SESSION = re.compile(r"((?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|, session\b)|\b(?:session or context|session)(s?)\b")
"""A quoted text or a name in a list (group 1), or the engine's word for a context and its plural (group 2)."""
_ERROR_BY_CODE: Mapping[str, type[ACMSError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ACMSError)
}
_OPERATOR_CODES = frozenset(
    code
    for code, kind in _ERROR_BY_CODE.items()
    if issubclass(kind, errors.StorageError)
    or kind in (errors.ConfigurationError, errors.MissingExtraError, errors.ProviderError)
)
"""Codes of errors that only the operator of the service can fix."""


def status_of(error: ACMSError) -> int:
    """Return the status of an error."""
    return STATUS_BY_CODE.get(error.code, 500)


def serialize_problem(error: ACMSError, *, request_id: str) -> dict[str, Json]:
    """Serialize an error as a problem; the message of an internal error is not exposed."""
    status = status_of(error)
    is_internal = status == 500
    detail = "the service failed; its log has details under the request id"
    if not is_internal:
        detail = _detail_for_http(error)
    options = [] if is_internal else translate_options(error)
    problem: dict[str, Json] = {
        "type": f"urn:acms:error:{error.code.lower()}",
        "title": TITLE_BY_STATUS[status],
        "status": status,
        "detail": detail,
        "code": error.code,
        "retryable": error.retryable,
        "options": options,
        "requestId": request_id,
    }
    is_fixable_by_caller = not is_internal and error.code not in _OPERATOR_CODES
    if is_fixable_by_caller and detail != str(error):
        problem["pythonDetail"] = str(error)
    if is_fixable_by_caller and options != list(error.options):
        problem["pythonOptions"] = list(error.options)
    problem.update(_serialize_extra_fields(error))
    return problem


def _serialize_extra_fields(error: ACMSError) -> dict[str, Json]:
    """Return the fields of a problem that only some errors have, such as the invalid parameter."""
    match error:
        case ValidationError() if error.field:
            message = _detail_for_http(error).removeprefix(f"{error.field}: ")
            return {"errors": [{"field": error.field, "message": message}]}
        case TokenBudgetExceededError():
            members: dict[str, Json] = {"budget": error.budget, "required": error.required}
            if isinstance(error, FitError):
                members.update(where=error.where, tried=list(error.tried))
            return members
        case MergeConflictError():
            return {"conflicts": [encode_noun(conflict) for conflict in error.conflicts]}
        case JobFailedError():
            return {"jobId": error.job_id}
        case PermissionDeniedError() if error.scope:
            return {"scope": error.scope}
        case ProviderError():
            return {"provider": error.provider}
        case _:
            return {}


def translate_options(error: ACMSError) -> list[str]:
    """Return the options of an error that an HTTP client can apply, without those for Python code or a shell."""
    if error.code in _OPERATOR_CODES:
        if error.retryable:
            return ["repeat the request, a change under the same Idempotency-Key"]
        return ["ask the operator of the service: its log has details under the request id"]
    translated = dict.fromkeys(map(_option_for_http, error.options))
    return [option for option in translated if not PROGRAM_TEXT.search(option)]


def _option_for_http(option: str) -> str:
    """Return what an error advises, with the HTTP request instead of the Python call or the command, if known."""
    for pattern, translation in _TRANSLATIONS:
        match = pattern.fullmatch(option)
        if match is not None:
            return match.expand(translation)
    return _say_context(option)


def _detail_for_http(error: ACMSError) -> str:
    """Return the message of an error in the words of the paths, behind the unchanged name of its field."""
    message = str(error)
    prefix = f"{error.field}: " if isinstance(error, ValidationError) else ""
    if not message.startswith(prefix):
        prefix = ""
    return prefix + _say_context(message.removeprefix(prefix))


def _say_context(text: str) -> str:
    """Return a text with the word of the paths for a session: context. Quoted names and values stay unchanged."""
    return _SESSION.sub(lambda match: match[1] or f"context{match[2]}", text)


def parse_problem(problem: Mapping[str, Json]) -> ACMSError:
    """Parse a problem into the error it was made from; an unknown code becomes an `ACMSError`."""
    code, detail = problem.get("code"), problem.get("pythonDetail", problem.get("detail"))
    error_class = _ERROR_BY_CODE.get(code, ACMSError) if isinstance(code, str) else ACMSError
    text = detail if isinstance(detail, str) else "the service answered with an error"
    values = _list_or_empty(problem.get("pythonOptions", problem.get("options")))
    options = [option for option in values if isinstance(option, str)]
    error = error_class.__new__(error_class)  # not called, because the subclasses take other arguments
    ACMSError.__init__(error, text, retryable=problem.get("retryable") is True, options=options)
    for name, value in _parse_extra_fields(error, problem).items():
        setattr(error, name, value)
    return error


def _parse_extra_fields(error: ACMSError, problem: Mapping[str, Json]) -> dict[str, Any]:
    """Return the attributes of an error that only its class has, such as the invalid field."""
    match error:
        case ValidationError():
            first_error = next(iter(_list_or_empty(problem.get("errors"))), None)
            return {"field": str(first_error.get("field", "")) if isinstance(first_error, dict) else ""}
        case TokenBudgetExceededError():
            budget, required = _int_or_zero(problem.get("budget")), _int_or_zero(problem.get("required"))
            members: dict[str, Any] = {"budget": budget, "required": required}
            if isinstance(error, FitError):
                tried_steps = tuple(str(step) for step in _list_or_empty(problem.get("tried")))
                members.update(over=required - budget, where=str(problem.get("where", "")), tried=tried_steps)
            return members
        case MergeConflictError():
            conflicts = _list_or_empty(problem.get("conflicts"))
            return {"conflicts": tuple(decode_noun(MergeConflict, conflict) for conflict in conflicts)}
        case JobFailedError():
            return {"job_id": str(problem.get("jobId", ""))}
        case PermissionDeniedError():
            return {"scope": str(problem.get("scope", ""))}
        case ProviderError():
            return {"provider": str(problem.get("provider", "")), "retry_after": None}
        case errors.MissingExtraError():
            return {"extra": ""}
        case errors.RateLimitError():
            return {"retry_after": 0.0}
        case _:
            return {}


def _list_or_empty(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _int_or_zero(value: Json) -> int:
    return value if type(value) is int else 0
