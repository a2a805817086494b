"""Every error ACMS raises, as one tree.

    ACMSError                       code                  retryable by default
    ├── ConfigurationError          CONFIGURATION         no
    │   └── MissingExtraError       MISSING_EXTRA         no     an optional dependency is not installed
    ├── ValidationError             VALIDATION            no     carries .field
    │   ├── PayloadError            PAYLOAD               no     a provider would refuse this request
    │   ├── TooLargeError           TOO_LARGE             no     more than one call may carry
    │   ├── MethodError             METHOD_NOT_ALLOWED    no     over HTTP: the path has no such method
    │   ├── MediaTypeError          UNSUPPORTED_MEDIA     no     over HTTP: the body is in another format
    │   └── NotAcceptableError      NOT_ACCEPTABLE        no     over HTTP: the answer cannot be in that format
    ├── AuthenticationError         UNAUTHENTICATED       no     over HTTP: no key, or none that is valid
    ├── PermissionDeniedError       FORBIDDEN             no     over HTTP: the key is not for this
    ├── RateLimitError              RATE_LIMITED          yes    carries .retry_after
    ├── DeadlineError               DEADLINE              yes    it took too long; a write may still happen
    ├── NotFoundError               NOT_FOUND             no
    │   ├── SessionNotFoundError    SESSION_NOT_FOUND     no
    │   ├── EpisodeNotFoundError    EPISODE_NOT_FOUND     no
    │   └── EntryNotFoundError      ENTRY_NOT_FOUND       no
    ├── ConflictError               CONFLICT              yes    the log moved on; read the head and decide again
    │   ├── IdempotencyMismatchError IDEMPOTENCY_MISMATCH no     one key, two different messages
    │   ├── MergeConflictError      MERGE_CONFLICT        no     both sides changed the same; carries .conflicts
    │   ├── PreconditionError       PRECONDITION          no     the state named by the caller is out of date
    │   └── LeaseLostError          LEASE_LOST            no     another worker holds the job now
    ├── GoneError                   GONE                  no     erased, expired or deleted
    │   └── ExpiredError            EXPIRED               no     retention has taken the content
    ├── LegalHoldError              LEGAL_HOLD            no     nothing of it may be erased or expire
    ├── JobFailedError              JOB_FAILED            no     carries .job_id
    ├── ForkDepthError              FORK_DEPTH            no     too many inherited segments: copy instead
    ├── TokenBudgetExceededError    BUDGET_EXCEEDED       no     carries .budget and .required
    │   └── FitError                FIT                   no     a prompt: carries .over, .where and .tried
    ├── StorageError                STORAGE               no
    │   ├── StorageBusyError        STORAGE_BUSY          yes    nothing was written
    │   ├── StorageFullError        STORAGE_FULL          yes    nothing was written
    │   ├── StorageUnavailableError STORAGE_UNAVAILABLE   yes    no server answers; the request may have arrived
    │   │   └── UnreachableError    UNREACHABLE           yes    over HTTP: no connection; nothing was sent
    │   ├── StorageReadOnlyError    STORAGE_READ_ONLY     no
    │   ├── CorruptRecordError      CORRUPT_RECORD        no
    │   ├── SchemaVersionError      SCHEMA_VERSION        no     the file was written by a newer release
    │   ├── HandleError             HANDLE                no     used after fork(), or closed
    │   └── VectorsUnavailableError VECTORS_UNAVAILABLE   yes    words must do for a while; nothing was written
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


class ACMSError(Exception):
    """ACMS failed."""

    code: str = "ACMS"
    #: True when the same call may succeed later and nothing was stored by this one.
    retryable: bool = False

    def __init__(
        self, message: str | None = None, *, retryable: bool | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(message or type(self).__doc__ or self.code)
        if retryable is not None:
            self.retryable = retryable
        #: What the caller can do about it, most useful first.
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
            options=(
                f"pip install '.[{extra}]', in a checkout",
                f"pip install 'acms_engine-VERSION-py3-none-any.whl[{extra}]', with a wheel",
            ),
        )
        self.extra = extra


class ValidationError(ACMSError):
    """The input is not valid; nothing was stored."""

    code = "VALIDATION"

    def __init__(self, message: str | None = None, *, field: str = "", options: Sequence[str] = ()) -> None:
        super().__init__(f"{field}: {message}" if field and message else message, options=options)
        #: The argument at fault, dotted for nested ones: "metadata.run", "messages[6].content".
        self.field = field


class PayloadError(ValidationError):
    """A provider would refuse this request; nothing was sent."""

    code = "PAYLOAD"


class TooLargeError(ValidationError):
    """This is more than one call may carry; nothing was stored."""

    code = "TOO_LARGE"


class MethodError(ValidationError):
    """The path has no such method."""

    code = "METHOD_NOT_ALLOWED"


class MediaTypeError(ValidationError):
    """The body is in a format that is not understood."""

    code = "UNSUPPORTED_MEDIA"


class NotAcceptableError(ValidationError):
    """The answer cannot be given in the format that was asked for."""

    code = "NOT_ACCEPTABLE"


class AuthenticationError(ACMSError):
    """A valid API key is needed."""

    code = "UNAUTHENTICATED"
    #: What an answer over HTTP says in WWW-Authenticate (RFC 6750).
    challenge: str = "Bearer"


class PermissionDeniedError(ACMSError):
    """The API key is not for this."""

    code = "FORBIDDEN"
    #: The scope that the key lacks; "" when it is something else that keeps it out.
    scope: str = ""


class RateLimitError(ACMSError):
    """Too many requests; wait and repeat it."""

    code = "RATE_LIMITED"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after: float) -> None:
        super().__init__(message)
        #: Seconds until it is worth while.
        self.retry_after = retry_after


class DeadlineError(ACMSError):
    """It took too long; a write may still have happened: repeat it with the same idempotency key."""

    code = "DEADLINE"
    retryable = True


class NotFoundError(ACMSError):
    """Nothing has this name."""

    code = "NOT_FOUND"


class SessionNotFoundError(NotFoundError):
    """No live context has this id or key."""

    code = "SESSION_NOT_FOUND"


class EpisodeNotFoundError(NotFoundError):
    """The session has no such episode."""

    code = "EPISODE_NOT_FOUND"


class EntryNotFoundError(NotFoundError):
    """No entry has this id."""

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
    """Both sides of a merge changed the same thing, and not to the same; nothing was merged."""

    code = "MERGE_CONFLICT"
    retryable = False

    def __init__(
        self, message: str | None = None, *, conflicts: Sequence[Any] = (), options: Sequence[str] = ()
    ) -> None:
        super().__init__(message, options=options)
        #: Each of them, as `acms.MergeConflict`.
        self.conflicts: tuple[Any, ...] = tuple(conflicts)


class PreconditionError(ConflictError):
    """A message came after the one that was named as the newest, or a text is another by now; nothing was stored."""

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
    """Retention has deleted the content that would come back."""

    code = "EXPIRED"


class LegalHoldError(ACMSError):
    """A legal hold forbids that anything is erased or expires; nothing was changed."""

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
    """What must be shown does not fit the token budget."""

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
    """What a prompt requires does not fit its budget."""

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
        at = f" (most of it in {where})" if where else ""
        super().__init__(
            message or f"{required} tokens are required{at}, {over} more than the budget of {budget}",
            budget=budget,
            required=required,
            options=options,
        )
        #: Tokens over the budget when nothing more could shrink.
        self.over = over
        #: Path of the scope that holds most of what is required.
        self.where = where
        #: What was done before giving up, in order.
        self.tried: tuple[str, ...] = tuple(tried)


class StorageError(ACMSError):
    """The store failed."""

    code = "STORAGE"


class StorageBusyError(StorageError):
    """Another process held the database for too long; nothing was written."""

    code = "STORAGE_BUSY"
    retryable = True


class StorageFullError(StorageError):
    """The disk is full; nothing was written and everything acknowledged before is intact."""

    code = "STORAGE_FULL"
    retryable = True


class StorageUnavailableError(StorageError):
    """The database server cannot be reached or does not answer; what was sent may have arrived."""

    code = "STORAGE_UNAVAILABLE"
    retryable = True
    #: True when the change may have been stored all the same: only with a key is it safe to repeat.
    unknown: bool = False


class UnreachableError(StorageUnavailableError):
    """Nobody answers at the address of the service; nothing was sent."""

    code = "UNREACHABLE"


class StorageReadOnlyError(StorageError):
    """The store cannot be written."""

    code = "STORAGE_READ_ONLY"


class CorruptRecordError(StorageError):
    """A stored record does not read back as it was written."""

    code = "CORRUPT_RECORD"


class SchemaVersionError(StorageError):
    """The file was written by a newer release of ACMS; it was not touched."""

    code = "SCHEMA_VERSION"


class HandleError(StorageError):
    """A storage handle belongs to one process, and a session that was closed must be opened again."""

    code = "HANDLE"


class VectorsUnavailableError(StorageError):
    """The place where the vectors are kept does not answer; everything else does."""

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
        #: Seconds to wait before the next call, where the provider said so.
        self.retry_after = retry_after
        self.__cause__ = cause
