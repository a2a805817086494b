"""Grants over HTTP: share a namespace, see with whom it is shared, take it back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from acms.errors import NotFoundError, PermissionDeniedError
from acms.log import validation
from acms.model import Grant
from acms.nouns import encode_noun
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.principal import Action
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data

__all__ = ["operations"]

operations = Operations("sharing")

_GRANTS = "/namespaces/{namespace}/grants"
_GRANT = f"{_GRANTS}/{{principal}}"


class GrantBody(Body):
    """The actions to allow."""

    actions: Annotated[list[Action], Field(min_length=1, default_factory=lambda: [Action.READ], strict=False)]
    """`read`; `write`, which allows every change that the scopes of the other key allow; `share`, which allows
    granting it to others. `write` and `share` include `read`."""


def _check_shareable_namespace(call: Call[Any, Any]) -> str:
    """Return the namespace in the path if the request may share it."""
    namespace, access = validation.validate_name(call.path["namespace"], "namespace"), call.principal.access
    if not access.allows(namespace, Action.SHARE):
        raise PermissionDeniedError(
            f"the namespace {namespace!r} cannot be shared by you", options=("ask a key that may share it",)
        )
    return namespace


@operations(
    "PUT",
    _GRANT,
    scope=Scope.APPEND,
    body=GrantBody,
    optional=True,
    reply=describe_single_reply(Grant),
    example={"actions": ["read", "write"]},
)
async def grant_namespace(call: Call[None, GrantBody]) -> Reply:
    """Share a namespace with a key, by its id, or with the subject of an access token, as `oidc:subject`.

    The actions replace those of an earlier grant. A key that is not bound to namespaces sees its whole tenant anyway. A
    key can grant only its own actions, and only within its tenant.
    """
    namespace, access = _check_shareable_namespace(call), call.principal.access
    actions = call.body.actions
    denied = [action for action in actions if not access.allows(namespace, action)]
    if denied:
        raise PermissionDeniedError(f"{denied[0].value!r} exceeds your own rights in {namespace!r}")
    grant = await call.app.grants.grant(
        call.principal.tenant, namespace, call.path["principal"], actions, sharer=call.principal
    )
    return reply_with_data(grant)


@operations("GET", _GRANTS, scope=Scope.READ, reply=describe_list_reply(Grant))
async def list_grants(call: Call[None, None]) -> Reply:
    """List the grants on a namespace, by principal.

    A grant lets a key or subject that is bound to other namespaces read, write or share this one.
    """
    grants = await call.app.grants.list(call.principal.tenant, _check_shareable_namespace(call))
    return Reply(body={"data": [encode_noun(grant) for grant in grants]})


@operations("DELETE", _GRANT, scope=Scope.APPEND, status=204)
async def revoke_grant(call: Call[None, None]) -> Reply:
    """Revoke a grant: the next request of the principal no longer sees the namespace, at any process of the service.

    Streams that the principal has open end. A grant that does not exist is an error with status 404.
    """
    namespace = _check_shareable_namespace(call)
    was_shared = await call.app.grants.revoke(
        call.principal.tenant, namespace, call.path["principal"], sharer=call.principal
    )
    if not was_shared:
        raise NotFoundError(
            f"{namespace!r} is not shared with it", options=("GET the grants of the namespace",)
        )
    return Reply()
