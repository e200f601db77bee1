"""The meaning of the keys under which a broker reports figures and settings. The keys are RocketMQ's names.

The meaning of a setting ends with the name of Holdfast's option in parentheses.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.admin.tables import size_text, time_text

_FIGURES: Final = {
    "accelerator": "whether its hot functions are compiled (native) or in Python, and why",
    "bootTimestamp": "when it started",
    "brokerActive": "whether it accepts messages",
    "commitLogDirCapacity": "the disk that holds the log",
    "commitLogDiskRatio": "used share of the disk that holds the log",
    "commitLogMaxOffset": "byte position at which the log ends",
    "commitLogMinOffset": "byte position at which the log begins",
    "consumeQueueDiskRatio": "used share of the disk that holds the indexes",
    "dispatchBehindBytes": "bytes of the log that are not indexed yet",
    "draining": "whether it gives its logical queues away",
    "earliestMessageTimeStamp": "when its oldest message was stored",
    "getFoundTps": "pulls per second that found messages: 10 s, 1 min, 10 min",
    "getMissTps": "pulls per second that found none: 10 s, 1 min, 10 min",
    "getTotalTps": "pulls per second: 10 s, 1 min, 10 min",
    "getTransferredTps": "messages read per second: 10 s, 1 min, 10 min",
    "logicalQueuesLed": "logical queues that it leads",
    "msgGetTotalTodayMorning": "messages read from its start to midnight",
    "msgGetTotalTodayNow": "messages read since its start",
    "msgGetTotalYesterdayMorning": "messages read from its start to the midnight before",
    "msgPutTotalTodayMorning": "messages stored from its start to midnight",
    "msgPutTotalTodayNow": "messages stored since its start",
    "msgPutTotalYesterdayMorning": "messages stored from its start to the midnight before",
    "putMessageAverageSize": "mean size of a stored message, where a broker measures it",
    "putMessageDistributeTime": "how many messages took how long to store, where a broker measures it",
    "putMessageFailedTimes": "messages that could not be stored, where a broker counts them",
    "putMessageSizeTotal": "bytes in the log",
    "putMessageTimesTotal": "messages stored since its start",
    "putTps": "messages stored per second: 10 s, 1 min, 10 min",
    "remainHowManyDataToFlush": "written bytes that are not on disk yet",
    "replicaMaster": "the address that this replica copies from",
    "replicaOf": "the broker that this replica copies",
    "replicaProblem": "why this replica does not copy",
    "replicaState": "how far this replica is",
    "replicas": "replicas that copy from it",
    "replicasBehind": "the replica that lags most",
    "replicasInSync": "replicas that are in sync",
    "runtime": "time since its start",
    "startAcceptSendRequestTimeStamp": "when it begins to accept messages; 0: from its start",
}
_DELAY_LEVEL: Final = re.compile(r"scheduleMessageOffset_(\d+)")

_SETTINGS: Final = {
    "autoCreateSubscriptionGroup": "groups appear with their first consumer (auto_create_groups)",
    "autoCreateTopicEnable": "topics appear with their first message (auto_create_topics)",
    "brokerClusterName": "the cluster that it belongs to (cluster)",
    "brokerIP1": "the host that clients connect to (advertise)",
    "brokerId": "0 for a master, its number for a replica (replica_id)",
    "brokerName": "its name (name)",
    "brokerPermission": "6: clients may read (4) and write (2)",
    "brokerRole": "master or replica, and when it acknowledges (replica_of, replication)",
    "defaultTopicQueueNums": "queues of a topic that appears with its first message (default_topic_queues)",
    "enablePropertyFilter": "whether consumers may select by SQL expressions",
    "fileReservedTime": "hours for which messages are kept (retention_hours)",
    "flushDiskType": "acknowledge after the disk has a message, or before (flush)",
    "haListenPort": "the port that replicas connect to (ha_port)",
    "listenPort": "the port that clients connect to (listen)",
    "mappedFileSizeCommitLog": "size of one file of the log (log_file_size)",
    "maxMessageSize": "largest message that it accepts (message_size_max)",
    "messageDelayLevel": "delays that a message can ask for, level 1 first (delay_levels)",
    "namesrvAddr": "name servers that it registers with (namesrv)",
    "registerNameServerPeriod": "milliseconds between its reports to them (register_interval_ms)",
    "storePathRootDir": "the folder that holds its messages (store)",
    "transactionCheckInterval": "milliseconds between checks of an open transaction (transaction_check_interval_ms)",
    "transactionCheckMax": "checks after which a transaction is rolled back (transaction_check_max)",
    "transactionTimeOut": "milliseconds until the first check (transaction_timeout_ms)",
}

_TIMES: Final = frozenset({"bootTimestamp", "earliestMessageTimeStamp"})
_SIZES: Final = frozenset({"mappedFileSizeCommitLog", "maxMessageSize", "putMessageSizeTotal", "dispatchBehindBytes"})


def figure_rows(figures: dict[str, str]) -> list[tuple[str, str, str | None]]:
    """Return key, value and meaning of every figure."""
    return [(key, _value_text(key, value), _meaning_of_figure(key)) for key, value in figures.items()]


def setting_rows(settings: dict[str, str]) -> list[tuple[str, str, str | None]]:
    """Return key, value and meaning of every setting."""
    return [(key, _value_text(key, value), _SETTINGS.get(key)) for key, value in settings.items()]


def _meaning_of_figure(key: str) -> str | None:
    if level := _DELAY_LEVEL.fullmatch(key):
        return f"delayed messages of level {level[1]}: delivered, stored"
    return _FIGURES.get(key)


def _value_text(key: str, value: str) -> str:
    if value.isdecimal() and key in _TIMES:
        return time_text(int(value)) or value
    if value.isdecimal() and key in _SIZES:
        return f"{value} ({size_text(int(value))})" if int(value) >= 1024 else value
    return value.replace(";", "; ")  # so that a list of addresses can wrap
