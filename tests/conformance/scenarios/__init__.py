"""The scenarios, a file for each subject. Importing this registers all of them, in the order in which they are listed."""

from scenarios import (  # noqa: F401
    protocol,
    payloads,
    auth,
    errors,
    streaming,
    endings,
    timeouts,
    limits,
    estimates,
    usage,
    disconnect,
    failures,
    windows,
    levels,
    headers,
    operations,
)
