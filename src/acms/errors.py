"""Every error ACMS raises, as one tree.

    ACMSError                       code                  retryable by default
    ├── ConfigurationError          CONFIGURATION         no
    │   └── MissingExtraError       MISSING_EXTRA         no     an optional dependency is not installed
    ├── ValidationError             VALIDATION            no     carries .field
    │   ├── PayloadError            PAYLOAD               no     a provider would refuse this request
    │   ├── TooLargeError           TOO_LARGE             no     more than one call may contain
    │   ├── MethodError             METHOD_NOT_ALLOWED    no     over HTTP: the path has no such method
    │   ├── MediaTypeError          UNSUPPORTED_MEDIA     no     over HTTP: the body is in another format
    │   └── NotAcceptableError      NOT_ACCEPTABLE        no     over HTTP: that format is not available
    ├── AuthenticationError         UNAUTHENTICATED       no     over HTTP: the key is missing or not valid
    ├── PermissionDeniedError       FORBIDDEN             no     over HTTP: the key does not permit this
    ├── RateLimitError              RATE_LIMITED          yes    carries .retry_after
    ├── DeadlineError               DEADLINE              yes    the time ran out; a write may still happen
    ├── NotFoundError               NOT_FOUND             no
    │   ├── SessionNotFoundError    SESSION_NOT_FOUND     no
    │   ├── EpisodeNotFoundError    EPISODE_NOT_FOUND     no
    │   └── EntryNotFoundError      ENTRY_NOT_FOUND       no
    ├── ConflictError               CONFLICT              yes    the log moved on; read the head and decide again
    │   ├── IdempotencyMismatchError IDEMPOTENCY_MISMATCH no     one key for two different messages
    │   ├── MergeConflictError      MERGE_CONFLICT        no     both sides changed the same thing; carries .conflicts
    │   ├── PreconditionError       PRECONDITION          no     the state that the caller expected is out of date
    │   └── LeaseLostError          LEASE_LOST            no     another worker holds the job now
    ├── GoneError                   GONE                  no     erased, expired or deleted
    │   └── ExpiredError            EXPIRED               no     retention has deleted the content
    ├── LegalHoldError              LEGAL_HOLD            no     the content must neither be erased nor expire
    ├── JobFailedError              JOB_FAILED            no     carries .job_id
    ├── ForkDepthError              FORK_DEPTH            no     too many inherited segments: copy instead
    ├── TokenBudgetExceededError    BUDGET_EXCEEDED       no     carries .budget and .required
    │   └── FitError                FIT                   no     for a prompt; carries .over, .where and .tried
    ├── StorageError                STORAGE               no
    │   ├── StorageBusyError        STORAGE_BUSY          yes    nothing was written
    │   ├── StorageFullError        STORAGE_FULL          yes    nothing was written
    │   ├── StorageUnavailableError STORAGE_UNAVAILABLE   yes    no answer; the request may have arrived
    │   │   └── UnreachableError    UNREACHABLE           yes    over HTTP: no connection; nothing was sent
    │   ├── StorageReadOnlyError    STORAGE_READ_ONLY     no
    │   ├── CorruptRecordError      CORRUPT_RECORD        no
    │   ├── SchemaVersionError      SCHEMA_VERSION        no     the file was written by a newer release
    │   ├── HandleError             HANDLE                no     used after fork(), closed, or its file was moved
    │   └── VectorsUnavailableError VECTORS_UNAVAILABLE   yes    search uses words only for now; nothing was written
    └── ProviderError               PROVIDER              no     carries .provider

The class docstring is the default message. `code` is the name on the wire, `retryable` may be set per instance,
`options` lists actions for the caller; a traceback shows them as notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ACMSError",
    "AuthenticationError",
    "ConfigurationError",
    "ConflictError",
    "CorruptRecordError",
    "DeadlineError",
    "EntryNotFoundError",
    "EpisodeNotFoundError",
    "ExpiredError",
    "FitError",
    "ForkDepthError",
    "GoneError",
    "HandleError",
    "IdempotencyMismatchError",
    "JobFailedError",
    "LeaseLostError",
    "LegalHoldError",
    "MediaTypeError",
    "MergeConflictError",
    "MethodError",
    "MissingExtraError",
    "NotAcceptableError",
    "NotFoundError",
    "PayloadError",
    "PermissionDeniedError",
    "PreconditionError",
    "ProviderError",
    "RateLimitError",
    "SchemaVersionError",
    "SessionNotFoundError",
    "StorageBusyError",
    "StorageError",
    "StorageFullError",
    "StorageReadOnlyError",
    "StorageUnavailableError",
    "TokenBudgetExceededError",
    "TooLargeError",
    "UnreachableError",
    "ValidationError",
    "VectorsUnavailableError",
]


MESSAGE_CHARS = 2_000
"""Characters of the message of an error: a wrong value that it quotes may have megabytes."""


class ACMSError(Exception):
    """ACMS failed."""

    code: str = "ACMS"
    #: True if this call stored nothing and the same call may succeed later.
    retryable: bool = False

    def __init__(
        self, message: str | None = None, *, retryable: bool | None = None, options: Sequence[str] = ()
    ) -> None:
        text = message or type(self).__doc__ or self.code
        super().__init__(text if len(text) <= MESSAGE_CHARS else f"{text[:MESSAGE_CHARS]}…")
        if retryable is not None:
            self.retryable = retryable
        #: Actions that the caller can take, the most useful first.
        self.options: tuple[str, ...] = tuple(options)
        for option in self.options:
            self.add_note(f"try: {option}")


class ConfigurationError(ACMSError):
    """The configuration is not valid."""

    code = "CONFIGURATION"


class MissingExtraError(ConfigurationError):
    """An optional dependency is not installed."""

    code = "MISSING_EXTRA"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            f"{package} is not installed: pip install '.[{extra}]' in a checkout of acms-engine",
            options=(f"pip install 'acms_engine-VERSION-py3-none-any.whl[{extra}]', with a wheel",),
        )
        self.extra = extra


class ValidationError(ACMSError):
    """The input is not valid; nothing was stored."""

    code = "VALIDATION"

    def __init__(self, message: str | None = None, *, field: str = "", options: Sequence[str] = ()) -> None:
        super().__init__(f"{field}: {message}" if field and message else message, options=options)
        #: Path of the argument that is not valid: "metadata.run", "messages[6].content".
        self.field = field


class PayloadError(ValidationError):
    """A provider would refuse this request; nothing was sent."""

    code = "PAYLOAD"


class TooLargeError(ValidationError):
    """This is more than one call may contain; nothing was stored."""

    code = "TOO_LARGE"


class MethodError(ValidationError):
    """The path has no such method."""

    code = "METHOD_NOT_ALLOWED"


class MediaTypeError(ValidationError):
    """The format of the body is not supported."""

    code = "UNSUPPORTED_MEDIA"


class NotAcceptableError(ValidationError):
    """The answer is not available in the requested format."""

    code = "NOT_ACCEPTABLE"


class AuthenticationError(ACMSError):
    """A valid API key is needed."""

    code = "UNAUTHENTICATED"
    #: The value of the header WWW-Authenticate in an answer over HTTP (RFC 6750).
    challenge: str = "Bearer"


class PermissionDeniedError(ACMSError):
    """The API key does not permit this."""

    code = "FORBIDDEN"
    #: The scope that the key lacks, or "" if access was denied for another reason.
    scope: str = ""


class RateLimitError(ACMSError):
    """Too many requests; wait and repeat the request."""

    code = "RATE_LIMITED"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after: float) -> None:
        super().__init__(message)
        #: Seconds to wait before the request is repeated.
        self.retry_after = retry_after


class DeadlineError(ACMSError):
    """The time ran out; a write may still have happened: repeat it with the same idempotency key."""

    code = "DEADLINE"
    retryable = True


class NotFoundError(ACMSError):
    """There is nothing with this name."""

    code = "NOT_FOUND"


class SessionNotFoundError(NotFoundError):
    """There is no live context with this id or key."""

    code = "SESSION_NOT_FOUND"


class EpisodeNotFoundError(NotFoundError):
    """The session has no such episode."""

    code = "EPISODE_NOT_FOUND"


class EntryNotFoundError(NotFoundError):
    """There is no entry with this id."""

    code = "ENTRY_NOT_FOUND"


class ConflictError(ACMSError):
    """The log moved on since it was read; read the head again and decide again."""

    code = "CONFLICT"
    retryable = True


class IdempotencyMismatchError(ConflictError):
    """This idempotency key was used before for another message; nothing was stored."""

    code = "IDEMPOTENCY_MISMATCH"
    retryable = False


class MergeConflictError(ConflictError):
    """Both sides of a merge changed the same thing in different ways; nothing was merged."""

    code = "MERGE_CONFLICT"
    retryable = False

    def __init__(
        self, message: str | None = None, *, conflicts: Sequence[Any] = (), options: Sequence[str] = ()
    ) -> None:
        super().__init__(message, options=options)
        #: The conflicts, each an `acms.MergeConflict`.
        self.conflicts: tuple[Any, ...] = tuple(conflicts)


class PreconditionError(ConflictError):
    """The log has a newer message than the one expected, or a text has changed; nothing was stored."""

    code = "PRECONDITION"
    retryable = False


class LeaseLostError(ConflictError):
    """The lease ran out and the job belongs to another attempt; nothing was stored."""

    code = "LEASE_LOST"
    retryable = False


class GoneError(ACMSError):
    """The content was erased, has expired, or its context was deleted."""

    code = "GONE"


class ExpiredError(GoneError):
    """Retention has deleted the content that would be restored."""

    code = "EXPIRED"


class LegalHoldError(ACMSError):
    """A legal hold forbids that content is erased or expires; nothing was changed."""

    code = "LEGAL_HOLD"


class JobFailedError(ACMSError):
    """A job was given up or cancelled; it had no effect on the log."""

    code = "JOB_FAILED"

    def __init__(self, message: str | None = None, *, job_id: str, options: Sequence[str] = ()) -> None:
        super().__init__(message, options=options)
        self.job_id = job_id


class ForkDepthError(ACMSError):
    """The fork would inherit too many segments; copy the context instead."""

    code = "FORK_DEPTH"


class TokenBudgetExceededError(ACMSError):
    """The required content does not fit the token budget."""

    code = "BUDGET_EXCEEDED"

    def __init__(
        self, message: str | None = None, *, budget: int, required: int, options: Sequence[str] = ()
    ) -> None:
        super().__init__(
            message or f"{required} tokens are required, the budget is {budget}", options=options
        )
        self.budget = budget
        self.required = required


class FitError(TokenBudgetExceededError):
    """The required parts of a prompt do not fit its budget."""

    code = "FIT"

    def __init__(
        self,
        message: str | None = None,
        *,
        budget: int,
        required: int,
        where: str = "",
        tried: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        over = required - budget
        where_note = f" (most of it in {where})" if where else ""
        super().__init__(
            message or f"{required} tokens are required{where_note}, {over} more than the budget of {budget}",
            budget=budget,
            required=required,
            options=options,
        )
        #: Tokens over the budget after everything was shrunk as far as possible.
        self.over = over
        #: Path of the scope with most of the required tokens.
        self.where = where
        #: The steps that were tried, in order.
        self.tried: tuple[str, ...] = tuple(tried)


class StorageError(ACMSError):
    """The store failed."""

    code = "STORAGE"


class StorageBusyError(StorageError):
    """Another process held the database for too long; nothing was written."""

    code = "STORAGE_BUSY"
    retryable = True
    #: True if the store has waited for its whole time limit: a session does not repeat the call by itself then.
    waited: bool = False


class StorageFullError(StorageError):
    """The disk is full; nothing was written and everything acknowledged before is intact."""

    code = "STORAGE_FULL"
    retryable = True


class StorageUnavailableError(StorageError):
    """The database server cannot be reached or does not answer; the request may have arrived."""

    code = "STORAGE_UNAVAILABLE"
    retryable = True
    #: True if the change may have been stored nevertheless: it is safe to repeat only with a key.
    unknown: bool = False


class UnreachableError(StorageUnavailableError):
    """The service does not answer at its address; nothing was sent."""

    code = "UNREACHABLE"


class StorageReadOnlyError(StorageError):
    """The store cannot be written."""

    code = "STORAGE_READ_ONLY"


class CorruptRecordError(StorageError):
    """A stored record differs from the one that was written."""

    code = "CORRUPT_RECORD"


class SchemaVersionError(StorageError):
    """The file was written by a newer release of ACMS; it was not touched."""

    code = "SCHEMA_VERSION"


class HandleError(StorageError):
    """A storage handle belongs to one process and one file, and a closed session must be opened again."""

    code = "HANDLE"


class VectorsUnavailableError(StorageError):
    """The vector store does not answer; everything else works."""

    code = "VECTORS_UNAVAILABLE"
    retryable = True


class ProviderError(ACMSError):
    """A model provider failed."""

    code = "PROVIDER"

    def __init__(
        self,
        message: str | None = None,
        *,
        provider: str,
        retryable: bool = False,
        cause: Exception | None = None,
        retry_after: float | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(message, retryable=retryable, options=options)
        self.provider = provider
        #: Seconds to wait before the next call, or None if the provider did not say.
        self.retry_after = retry_after
        self.__cause__ = cause
