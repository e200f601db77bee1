"""Holdfast is a RocketMQ-compatible streaming message system. This package is its client library.

    import holdfast

    async with holdfast.Producer("127.0.0.1:9876", group="shop") as producer:
        await producer.send("orders", b"one book", key="customer-17", tags="paid")

    async with holdfast.PushConsumer("127.0.0.1:9876", "billing", start="earliest") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        async for message in consumer:
            print(message.key, message.body)

Everything is asyncio; `holdfast.blocking` offers the same to other programs. All errors derive from `HoldfastError` and
say what to do.

The parts of Holdfast:

    model/         values that every other package uses
    wire/          the remoting protocol and the record format
    store/         the log engine
    machine/       events and effects: the interface between the pure roles and their shells
    nameserver/    the name server
    broker/        the broker
    client/        producers and consumers, on asyncio
    columns/       stored bytes as Arrow columns
    runtime/       asyncio and POSIX shells: sockets, clock, threads, files
    bulk/          bulk access to topics, for `arrow` and Spark
    config         the options of roles, from a TOML file, environment variables and flags
    blocking       the client library without asyncio
    arrow          topics as Arrow record batches
    admin/         operations on a cluster
    cli/           the command line
    spark/         the Spark source and sink
    pipeline/      Spark jobs over the store folders of brokers
    demo/          demos of a cluster that changes under load
    sim/           the simulator: whole clusters in one thread, from one seed
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import blocking
    from holdfast.client.access.credentials_options import CredentialsOptions
    from holdfast.client.cluster.cluster_client import ClusterClient
    from holdfast.client.cluster.queue_rpc import Start
    from holdfast.client.consume.listener import Listener, RetryLater
    from holdfast.client.consume.pull_plan import Prefetch
    from holdfast.client.options import ClientOptions
    from holdfast.client.produce.batch_lines import Batching
    from holdfast.client.produce.transaction import Transaction, TransactionOutcome
    from holdfast.client.producer import Producer
    from holdfast.client.pull_consumer import PullConsumer
    from holdfast.client.push_consumer import PushConsumer
    from holdfast.model.access.client_tls import ClientTls
    from holdfast.model.errors import (
        AccessDenied,
        BrokerRefused,
        ConfigError,
        ConnectionLost,
        CorruptRecord,
        ForkedClient,
        HoldfastError,
        LocalProtocolError,
        LoginFailed,
        ProducerFull,
        ProtocolError,
        RemoteProtocolError,
        RequestTimeout,
        RouteNotFound,
        SendFailed,
        SendManyFailed,
    )
    from holdfast.model.message import Message, ReceivedMessage, SendResult, SendStatus
    from holdfast.model.queue import MessageQueue
    from holdfast.wire.records.compression import Codec

    __version__: str

__all__ = [
    "AccessDenied",
    "Batching",
    "BrokerRefused",
    "ClientOptions",
    "ClientTls",
    "ClusterClient",
    "Codec",
    "ConfigError",
    "ConnectionLost",
    "CorruptRecord",
    "CredentialsOptions",
    "ForkedClient",
    "HoldfastError",
    "Listener",
    "LocalProtocolError",
    "LoginFailed",
    "Message",
    "MessageQueue",
    "Prefetch",
    "Producer",
    "ProducerFull",
    "ProtocolError",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RemoteProtocolError",
    "RequestTimeout",
    "RetryLater",
    "RouteNotFound",
    "SendFailed",
    "SendManyFailed",
    "SendResult",
    "SendStatus",
    "Start",
    "Transaction",
    "TransactionOutcome",
    "blocking",
]

# Servers start from this package, too, and must not wait for a client library that they never use: a name is imported
# from its module on first access.
_EXPORTS = {
    "holdfast.client.produce.batch_lines": ("Batching",),
    "holdfast.client.access.credentials_options": ("CredentialsOptions",),
    "holdfast.client.options": ("ClientOptions",),
    "holdfast.client.cluster.cluster_client": ("ClusterClient",),
    "holdfast.client.consume.listener": ("Listener", "RetryLater"),
    "holdfast.client.producer": ("Producer",),
    "holdfast.client.pull_consumer": ("PullConsumer",),
    "holdfast.client.consume.pull_plan": ("Prefetch",),
    "holdfast.client.push_consumer": ("PushConsumer",),
    "holdfast.client.cluster.queue_rpc": ("Start",),
    "holdfast.client.produce.transaction": ("Transaction", "TransactionOutcome"),
    "holdfast.model.access.client_tls": ("ClientTls",),
    "holdfast.model.errors": (
        "AccessDenied",
        "BrokerRefused",
        "ConfigError",
        "ConnectionLost",
        "CorruptRecord",
        "ForkedClient",
        "HoldfastError",
        "LocalProtocolError",
        "LoginFailed",
        "ProducerFull",
        "ProtocolError",
        "RemoteProtocolError",
        "RequestTimeout",
        "RouteNotFound",
        "SendFailed",
        "SendManyFailed",
    ),
    "holdfast.model.message": ("Message", "ReceivedMessage", "SendResult", "SendStatus"),
    "holdfast.model.queue": ("MessageQueue",),
    "holdfast.wire.records.compression": ("Codec",),
}


def __getattr__(name: str) -> object:
    """Return a public name, and cache it."""
    if name == "blocking":
        return importlib.import_module("holdfast.blocking")
    if name == "__version__":
        globals()[name] = _find_version()
        return globals()[name]
    for module, names in _EXPORTS.items():
        if name in names:
            found: object = getattr(importlib.import_module(module), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def _find_version() -> str:
    from importlib import metadata  # noqa: PLC0415 - it loads half of the standard library

    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:  # Shipped as a plain folder or archive, as Spark does it.
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
