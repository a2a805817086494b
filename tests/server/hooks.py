"""What schemathesis is told beside its configuration: the body of an import is text as it stands."""

import schemathesis

schemathesis.serializer.alias("application/x-ndjson", "text/plain")
