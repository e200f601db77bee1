"""The errors that callers see.

HoldfastError
  ProtocolError           bytes or values that violate the protocol
    LocalProtocolError      ours: the protocol cannot represent what we were asked to send
    RemoteProtocolError     theirs: the peer's channel is closed
  BrokerRefused           a server understood the request and refused it
    AccessDenied            the user may not do it, or did not prove its identity
      LoginFailed             no login at a server; nothing else was sent to it
  RouteNotFound           no broker serves the topic
  RequestTimeout          no answer in time; whether the request was executed is unknown
  ConnectionLost          the channel closed while the request was pending
  SendFailed              a message could not be sent, after every attempt; says whether it may be stored
    SendManyFailed          some of many messages could not be sent; says which
  ProducerFull            the producer's buffer is full; the message was not accepted
  ForkedClient            a client that was opened before a fork is used in the child
  StoreError              the log engine
    CorruptRecord           bytes on disk differ from those that were written
    DiskFailed              a disk operation failed; the store accepts no more writes
  PeerFailed              another server did not answer a server's request
  MappingRefused          a change of logical queues that would break one of their rules
  ConfigError             a setting that cannot be used
  PortTaken               another process listens on our port
"""

from __future__ import annotations

from collections.abc import Sequence


class HoldfastError(Exception):
    """Any failure that Holdfast reports on purpose."""


class ProtocolError(HoldfastError):
    """Bytes or values violate the protocol."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot represent a value that we were asked to send."""


class RemoteProtocolError(ProtocolError):
    """The peer sent malformed data; its channel is closed."""


class BrokerRefused(HoldfastError):
    """A server answered a request with a failure code.

    Attributes:
        code: The response code, see `holdfast.wire.frames.codes.ResponseCode`.
        remark: The server's explanation.
        address: The server that refused, if known.
    """

    def __init__(self, code: int, remark: str, *, address: str | None = None) -> None:
        where = f" by {address}" if address else ""
        super().__init__(f"refused{where} with code {code}: {remark or 'no reason given'}")
        self.code = code
        self.remark = remark
        self.address = address


class AccessDenied(BrokerRefused):
    """A server refused a request because of access control. Every other server would refuse it, too: do not retry it.

    The user lacks a permission, is unknown or disabled, or its signature is wrong; `remark` is the server's text.
    """

    def add_advice(self, advice: str) -> None:
        """Add what to do to the text of the error."""
        self.args = (f"{self} ({advice})",)


class LoginFailed(AccessDenied):
    """A client and a server could not prove their identities to each other. No other request was sent.

    The code is the one of a refusal, also if it is the client that refuses the server.

    Attributes:
        user: The access key.
    """

    def __init__(self, code: int, remark: str, *, user: str, address: str) -> None:
        super().__init__(code, remark, address=address)
        self.args = (f"login of {user!r} at {address} failed: {remark}",)
        self.user = user


class NoLeader(BrokerRefused):
    """A broker waited for a logical queue to get a leader, but the queue has no mapping."""


class UnreadableBatch(RemoteProtocolError):
    """An inner batch cannot be unpacked. The other pulled messages can be consumed.

    Attributes:
        offset: The offset of its first message.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the batch at offset {offset} cannot be opened: {reason}")
        self.offset = offset


class RouteNotFound(HoldfastError):
    """No name server has a route for the topic."""


class RequestTimeout(HoldfastError):
    """No answer arrived in time. Whether the server executed the request is unknown."""


class ConnectionLost(HoldfastError):
    """The channel closed, or could not be opened.

    Attributes:
        was_sent: Whether a request was sent before; then it may have been executed.
    """

    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class SendFailed(HoldfastError):
    """A message could not be sent, after every permitted attempt.

    Attributes:
        cause: The error of the last attempt.
        maybe_stored: Whether a broker may have stored the message nevertheless, because an attempt got no answer.
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
        """The response code if a server refused the message; None otherwise."""
        return self.cause.code if isinstance(self.cause, BrokerRefused) else None


class SendManyFailed(SendFailed):
    """Some of many messages could not be sent.

    Attributes:
        results: The result of each message, in the order given: a `SendResult`, or the `SendFailed` that ended it.
    """

    def __init__(self, results: Sequence[object]) -> None:
        failures = [result for result in results if isinstance(result, SendFailed)]
        maybe_stored = any(failure.maybe_stored for failure in failures)
        HoldfastError.__init__(self, f"{len(failures)} of {len(results)} messages were not sent; first: {failures[0]}")
        self.cause = failures[0].cause
        self.maybe_stored = maybe_stored
        self.results = list(results)


class ProducerFull(HoldfastError):
    """A producer's limit for unacknowledged messages is reached. The message was not accepted; try again later."""


class ForkedClient(HoldfastError):
    """A client was opened before this process was forked. Only the parent process can use it."""

    def __init__(self) -> None:
        super().__init__(
            "this client was opened by the parent process, before the fork; its connections and threads are not in "
            "this process. Create a client after the fork, in the process that uses it"
        )


class StoreError(HoldfastError):
    """The log engine cannot execute the operation."""


class RecordRefused(StoreError):
    """A message cannot be stored: it exceeds a limit, or the store accepts no writes. Nothing was changed."""


class CorruptRecord(StoreError):
    """Bytes on disk differ from those that were written.

    Attributes:
        position: Byte address in the commit log.
        reason: What the check found.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"record at position {position} is corrupt: {reason}")
        self.position = position
        self.reason = reason


class DiskFailed(StoreError):
    """A write, a read or a sync failed. The store accepts no more writes until it is restarted."""


class DiskFull(DiskFailed):
    """The disk has no space left for a write or a new file. The caller can retry later."""


class MappingRefused(HoldfastError):
    """Logical queues cannot be changed, or read, in this way. Nothing was changed.

    Attributes:
        rule: A short name of the rule that would be broken.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{text} (rule: {rule})")
        self.rule = rule


class ConfigError(HoldfastError):
    """A setting is unknown or has an invalid value. The message names the closest valid one."""


class PortTaken(HoldfastError):
    """Another process listens on our port. The setting may be right: the machine is not ready."""


class PeerFailed(HoldfastError):
    """Another server, or a client, did not answer a request of this server.

    Attributes:
        is_unsent: The request certainly did not reach the peer.
    """

    def __init__(self, reason: str, *, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.is_unsent = is_unsent
