"""Closed vocabularies that the wire speaks and the record keeps. Floor 0: neither side owns them."""

from __future__ import annotations

from enum import IntEnum, StrEnum

SIMULATED_OWNER = "trigpoint"
"""``owned_by`` of the models that our own servers list: who attaches to one through a router that hides its other pages still knows it."""


class EventKind(IntEnum):
    """What one server-sent event (or one non-stream body) carried."""

    TOKEN = 1
    ROLE = 2
    EMPTY = 3
    USAGE = 4
    DONE = 5
    ERROR = 6
    COMMENT = 7
    MALFORMED = 8


class EndKind(StrEnum):
    """How the exchange ended as the client saw it. A closed vocabulary; analysis maps it to outcomes."""

    COMPLETE = "complete"
    """The response ended as its protocol says it should."""
    CLIENT_STOP = "client_stop"
    """The engine closed after ``stop_after`` tokens, as planned; the request is served."""
    CANCELLED = "cancelled"
    """The plan cancelled it."""
    HTTP_ERROR = "http_error"
    """A status other than 2xx; ``http_status`` says which."""
    ERROR_EVENT = "error_event"
    """An error object inside a 200 response; ``error_status`` holds its code if it had one."""
    CONNECT_REFUSED = "connect_refused"
    CONNECT_FAILED = "connect_failed"
    RESET = "reset"
    """The connection was reset or closed before the response ended."""
    TIMEOUT = "timeout"
    """The per-request deadline passed."""
    MALFORMED = "malformed"
    """Bytes that are not the protocol: bad HTTP, bad JSON, a stream without its end mark."""
    DRAIN_END = "drain_end"
    """Unfinished when the drain ended; the client closed it."""
    NEVER_SENT = "never_sent"
    """The run ended before it came due, or the load was stopped. Its arrival stands in the record when the plan set it, behind the run's
    end; a request that waits for others has none."""
    NEVER_DUE = "never_due"
    """A request that waits for others, one of which did not complete; it had no arrival, belongs to no cohort and is counted apart."""
    CLIENT_FAULT = "client_fault"
    """Our own failure, a lost worker among them; invalidates the replicate."""
