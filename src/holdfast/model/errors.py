"""What can go wrong, as the caller sees it.

HoldfastError
  ProtocolError           bytes that break the protocol
    LocalProtocolError      ours: we were asked to say something that cannot be said
    RemoteProtocolError     theirs: the peer's channel is closed
  BrokerRefused           a server understood the request and said no
  RouteNotFound           nobody serves the topic
  RequestTimeout          no answer in time; whether it was carried out is unknown
  ConnectionLost          the channel went away with the request on it
  SendFailed              a message could not be sent, after every attempt; says whether it may be stored
    SendManyFailed          some of many messages could not be sent; says which
  ProducerFull            too much is waiting to be sent; nothing was taken
  ForkedClient            a client that was opened before a fork is used in the child
  StoreError              the log engine
    CorruptRecord           bytes on disk that are not what was written
    DiskFailed              the disk refused; the store takes no more writes
  PeerFailed              another server did not answer the one that asked it
  MappingRefused          a change of logical queues that would break one of their rules
  ConfigError             a setting that cannot be used
  PortTaken               somebody else listens where we should
"""

from __future__ import annotations

from collections.abc import Sequence


class HoldfastError(Exception):
    """Any failure that Holdfast reports on purpose."""


class ProtocolError(HoldfastError):
    """Bytes or values that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We were asked to send something that the protocol cannot carry."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that cannot be understood; its channel is closed."""


class BrokerRefused(HoldfastError):
    """A server answered a request with a failure code.

    Attributes:
        code: The response code, see `holdfast.wire.frames.codes.ResponseCode`.
        remark: The server's own words.
        address: Who refused, if known.
    """

    def __init__(self, code: int, remark: str, *, address: str | None = None) -> None:
        where = f" by {address}" if address else ""
        super().__init__(f"refused{where} with code {code}: {remark or 'no reason given'}")
        self.code = code
        self.remark = remark
        self.address = address


class NoLeader(BrokerRefused):
    """A broker waited for a logical queue to get a leader, and knows of none: the queue has no mapping."""


class UnreadableBatch(RemoteProtocolError):
    """A batch that was kept whole cannot be opened. What was pulled beside it can be consumed.

    Attributes:
        offset: Of its first message.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the batch at offset {offset} cannot be opened: {reason}")
        self.offset = offset


class RouteNotFound(HoldfastError):
    """No name server knows who serves the topic."""


class RequestTimeout(HoldfastError):
    """No answer came in time. Whether the server carried the request out is unknown."""


class ConnectionLost(HoldfastError):
    """The channel closed, or could not be opened.

    Attributes:
        was_sent: Whether a request had left; then it may have been carried out.
    """

    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class SendFailed(HoldfastError):
    """A message could not be sent, after every attempt that was allowed.

    Attributes:
        cause: What ended the last attempt.
        maybe_stored: Whether a broker may have stored the message all the same, because an attempt got no answer.
            If so, sending it again may deliver it twice; if not, it certainly was not stored.
    """

    def __init__(self, cause: HoldfastError, *, attempts: int, maybe_stored: bool) -> None:
        stored = "the message may have been stored" if maybe_stored else "the message was not stored"
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"send failed (tried {times}): {cause}; {stored}")
        self.cause = cause
        self.maybe_stored = maybe_stored

    @property
    def code(self) -> int | None:
        """The response code, when a server refused; None otherwise."""
        return self.cause.code if isinstance(self.cause, BrokerRefused) else None


class SendManyFailed(SendFailed):
    """Some of many messages could not be sent.

    Attributes:
        results: What became of each message, in the order given: a `SendResult`, or the `SendFailed` it ended with.
    """

    def __init__(self, results: Sequence[object]) -> None:
        failures = [result for result in results if isinstance(result, SendFailed)]
        maybe_stored = any(failure.maybe_stored for failure in failures)
        HoldfastError.__init__(self, f"{len(failures)} of {len(results)} messages were not sent; first: {failures[0]}")
        self.cause = failures[0].cause
        self.maybe_stored = maybe_stored
        self.results = list(results)


class ProducerFull(HoldfastError):
    """A producer holds as much as it may that is not acknowledged. The message was not taken; try it again later."""


class ForkedClient(HoldfastError):
    """A client was opened before this process was forked from its parent. Only the parent can use it."""

    def __init__(self) -> None:
        super().__init__(
            "this client was opened by the parent process, before the fork; its connections and threads are not in "
            "this process. Create a client after the fork, in the process that uses it"
        )


class StoreError(HoldfastError):
    """The log engine cannot do what was asked."""


class RecordRefused(StoreError):
    """A message cannot be stored: it passes a limit, or the store takes no writes. Nothing was changed."""


class CorruptRecord(StoreError):
    """Bytes on disk are not what was written.

    Attributes:
        position: Byte address in the commit log.
        reason: What is wrong with it.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"record at position {position} is corrupt: {reason}")
        self.position = position
        self.reason = reason


class DiskFailed(StoreError):
    """The disk refused a write, a read or a sync. The store takes no more writes until it is restarted."""


class DiskFull(DiskFailed):
    """The disk has no space left for a write or a new file. The same call can be made again later."""


class MappingRefused(HoldfastError):
    """Logical queues cannot be changed, or read, in this way. Nothing was changed.

    Attributes:
        rule: A short name of the rule that would be broken.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{text} (rule: {rule})")
        self.rule = rule


class ConfigError(HoldfastError):
    """A setting is unknown or has a value that cannot be used. The message names the nearest right one."""


class PortTaken(HoldfastError):
    """Somebody else listens where we should. The setting may be right: it is the machine that is not ready."""


class PeerFailed(HoldfastError):
    """A server that was asked by another server did not answer.

    Attributes:
        is_unsent: It cannot have heard the question.
    """

    def __init__(self, reason: str, *, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.is_unsent = is_unsent
