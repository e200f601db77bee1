"""Runtime statistics, settings and clean-up for tools (25, 26, 28, 45, 60, 61, 306, 315, 329, 402, 907)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from holdfast.broker.deferred.scheduled_messages import DelayedDelivery
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.replication.local_reads import LocalReads
from holdfast.broker.replication.replica_report import ReplicaReport
from holdfast.broker.tables.stats import BrokerStats, Counter
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.errors import CorruptRecord
from holdfast.native import DESCRIPTION
from holdfast.store.log.record_reader import read_record
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.cluster.route import Table
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import VERSION, RequestCode, ResponseCode
from holdfast.wire.requests.admin import RuntimeInfoFields, StatsFields

VERSION_NAME: Final = "V5_3_3"
# Last read time, flushed position of the timer log, queue offset, the master's queue offset, and the data version.
_TIMER_CHECKPOINT: Final = struct.Struct(">7q")
_SPANS_MS: Final = (10_000, 60_000, 600_000)
_GIB: Final = 1 << 30

# Statistics of features that do not exist here (thread pools and their queues, a timer wheel). Tools parse them anyway.
_POOLS: Final = ("send", "pull", "litePull", "query", "ack", "EndTransaction")
_ABSENT_FIGURES: Final = (
    {f"{pool}ThreadPoolQueue{figure}": "0" for pool in _POOLS for figure in ("Size", "HeadWaitTimeMills")}
    | {f"{pool}ThreadPoolQueueCapacity": "10000" for pool in _POOLS}
    | {f"timer{figure}": "0" for figure in ("ReadBehind", "OffsetBehind", "CongestNum")}
    | {f"timer{figure}Tps": "0.0" for figure in ("Enqueue", "Dequeue")}
    | {f"putMessage{figure}": "0" for figure in ("FailedTimes", "EntireTimeMax")}
    | {
        "dispatchMaxBuffer": "0",
        "getMessageEntireTimeMax": "0",
        "pageCacheLockTimeMills": "0",
        "putMessageAverageSize": "0.0",
        "putMessageDistributeTime": "",
        "remainTransientStoreBufferNumbs": "0",
        "startAcceptSendRequestTimeStamp": "0",
    }
)


class BrokerAdmin(Component):
    """Handles requests of tools about the broker itself."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        mappings: Mappings,
        stats: BrokerStats,
        delays: DelayedDelivery,
        replication: ReplicaReport,
        local_reads: LocalReads,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._options = options
        self._topics = topics
        self._mappings = mappings
        self._store = replication.store
        self._stats = stats
        self._delays = delays
        self._replication = replication
        self._local_reads = local_reads

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.put_settings,
            RequestCode.GET_BROKER_CONFIG: self.get_settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.get_figures,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_delays,
            RequestCode.GET_TIMER_CHECK_POINT: self.get_timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.get_timer_metrics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean,
            RequestCode.VIEW_BROKER_STATS_DATA: self.get_counter,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.get_request_modes,
            RequestCode.GET_BROKER_HA_STATUS: self.get_replicas,
        }

    # Statistics.

    async def get_figures(self, request: Request) -> Answer:
        """Answer 28: return the runtime statistics. A Holdfast replica reports its progress in the request."""
        self._local_reads.note_report(request.header_as(RuntimeInfoFields))
        earliest_ms = await self._earliest_ms()
        figures = self._figures() | {"earliestMessageTimeStamp": str(earliest_ms)}
        if self._options.trusted_brokers:
            figures["trustedBrokers"] = ",".join(self._options.trusted_brokers)
        return request.answer(body=java_json.encode(Table(figures)))

    def get_counter(self, request: Request) -> Answer:
        """Answer 315: return the rates of a counter."""
        fields = request.header_as(StatsFields)
        counter = self._stats.find_named(fields.stats_name, fields.stats_key)
        if counter is None:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{fields.stats_name}> <{fields.stats_key}> not exist")
        return request.answer(body=java_json.encode(counter.rates()))

    def get_delays(self, request: Request) -> Answer:
        """Answer 45: return the delivery progress of delayed messages."""
        return request.answer(body=java_json.encode(self._delays.to_wire()))

    def get_timer_checkpoint(self, request: Request) -> Answer:
        """Answer 60, which Java replicas send every 3 s, with an empty timer wheel that has delivered everything."""
        last_read_ms = self._turn.now_ms // 1000 * 1000
        return request.answer(body=_TIMER_CHECKPOINT.pack(last_read_ms, 0, 0, 0, 0, self._turn.now_ms, 0))

    def get_timer_metrics(self, request: Request) -> Answer:
        """Answer 61: no topic has messages in the timer wheel. The constant version makes replicas save nothing."""
        return request.answer(body=java_json.encode({"dataVersion": DataVersion(), "timingCount": {}}))

    def get_request_modes(self, request: Request) -> Answer:
        """Answer 402: every group uses pull mode."""
        return request.answer(body=java_json.encode({"messageRequestModeMap": {}}))

    def get_replicas(self, request: Request) -> Answer:
        """Answer 907: return the state of this broker's replicas, or of its replication from a master."""
        return request.answer(body=java_json.encode(self._replication.ha_status()))

    # Settings.

    def get_settings(self, request: Request) -> Answer:
        """Answer 26: return the settings under RocketMQ's names."""
        text = "".join(f"{name}={value}\n" for name, value in sorted(_settings(self._options).items()))
        version = java_json.encode(self._topics.data_version).decode()
        return request.answer(fields={"version": version}, body=text.encode())

    def put_settings(self, request: Request) -> Answer:
        """Answer 25: refuse changes, because settings are read from the configuration at the start.

        Names that are unknown here are ignored.
        """
        known = _settings(self._options)
        for line in request.command.body.decode(errors="replace").splitlines():
            name, is_set, value = (part.strip() for part in line.partition("="))
            if is_set and name in known and known[name] != value:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"{name} is {known[name]} and cannot be changed while the broker runs; "
                    "change its configuration and restart it",
                )
        return request.answer()

    def clean(self, request: Request) -> Answer:
        """Answer 306 and 329: delete expired files now."""
        for name in self._store.clean(self._turn.now_ms):
            self._turn.log("info", "file removed", file=name)
        return request.answer()

    def _figures(self) -> dict[str, str]:
        figures = _ABSENT_FIGURES | self._message_figures() | self._log_figures() | self._queue_figures()
        figures |= self._replication.figures() | {"accelerator": DESCRIPTION}
        for level, (delivered, scheduled) in self._delays.progress().items():
            figures[f"scheduleMessageOffset_{level}"] = f"{delivered},{scheduled}"
        return figures

    def _queue_figures(self) -> dict[str, str]:
        """Return the number of logical queues led here, and the draining flag; nothing without static topics."""
        mappings = self._mappings
        if not mappings.topics() and not mappings.is_draining:
            return {}
        led = sum(len(mappings.led_queues(topic)) for topic in mappings.topics())
        return {"logicalQueuesLed": str(led), "draining": "true" if mappings.is_draining else "false"}

    def _message_figures(self) -> dict[str, str]:
        """Return the start time, and the counts and rates of puts and gets."""
        stats = self._stats
        today, yesterday = stats.at_midnights()
        return {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(VERSION),
            "bootTimestamp": str(stats.started_ms),
            "runtime": _span_text(self._turn.now_ms - stats.started_ms),
            "putTps": _tps(stats.puts.tps),
            "getTransferredTps": _tps(stats.gets.tps),
            "getFoundTps": _tps(stats.pulls_found.tps),
            "getMissTps": _tps(stats.pulls_missed.tps),
            "getTotalTps": _tps(lambda span_ms: _sum_tps(span_ms, stats.pulls_found, stats.pulls_missed)),
            "msgPutTotalTodayNow": str(stats.puts.value),
            "msgPutTotalTodayMorning": str(today[0]),
            "msgPutTotalYesterdayMorning": str(yesterday[0]),
            "msgGetTotalTodayNow": str(stats.gets.value),
            "msgGetTotalTodayMorning": str(today[1]),
            "msgGetTotalYesterdayMorning": str(yesterday[1]),
            "putMessageTimesTotal": str(stats.puts.value),
        }

    def _log_figures(self) -> dict[str, str]:
        """Return the state of the log and of its disk."""
        store, disk = self._store, self._store.disk_use
        ratio = f"{disk.used / disk.total:.2f}" if disk.total else "0.0"
        free = disk.total - disk.used
        return {
            "brokerActive": str(store.is_writable).lower(),
            "commitLogMinOffset": str(store.start),
            "commitLogMaxOffset": str(store.written),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {disk.total / _GIB:.1f} GiB, Free : {free / _GIB:.1f} GiB.",
            "putMessageSizeTotal": str(store.written - store.start),
            "dispatchBehindBytes": str(store.unconfirmed_bytes),
            "remainHowManyDataToFlush": f"{store.unconfirmed_bytes} B",
        }

    async def _earliest_ms(self) -> int:
        """Return the store time of the oldest record; -1, as in RocketMQ, if there is none."""
        try:
            record = await read_record(self._store.start)
        except CorruptRecord:
            return -1
        return record.store_ms if record is not None else -1


def _settings(options: BrokerOptions) -> dict[str, str]:
    """Return the settings with RocketMQ's names and values."""
    host, _, port = options.address.rpartition(":")
    return {
        "brokerName": options.name,
        "brokerClusterName": options.cluster,
        "brokerId": str(options.broker_id),
        "brokerIP1": host,
        "listenPort": port,
        "namesrvAddr": ";".join(options.namesrv),
        "brokerRole": "SLAVE" if options.is_replica else f"{options.replication.upper()}_MASTER",
        "haListenPort": options.ha_address.rpartition(":")[2],
        "brokerPermission": "6",
        "autoCreateTopicEnable": str(options.auto_create_topics).lower(),
        "autoCreateSubscriptionGroup": str(options.auto_create_groups).lower(),
        "defaultTopicQueueNums": str(options.default_topic_queues),
        "enablePropertyFilter": "false",
        "storePathRootDir": options.store,
        "flushDiskType": f"{options.flush.upper()}_FLUSH",
        "mappedFileSizeCommitLog": str(options.log_file_size),
        "maxMessageSize": str(options.message_size_max),
        "fileReservedTime": str(options.retention_hours),
        "messageDelayLevel": options.delay_levels,
        "transactionTimeOut": str(options.transaction_timeout_ms),
        "transactionCheckInterval": str(options.transaction_check_interval_ms),
        "transactionCheckMax": str(options.transaction_check_max),
        "registerNameServerPeriod": str(options.register_interval_ms),
    }


def _tps(rate: Callable[[int], float]) -> str:
    """Return the rates over ten seconds, a minute and ten minutes, in the format that tools parse."""
    return " ".join(str(rate(span_ms)) for span_ms in _SPANS_MS)


def _sum_tps(span_ms: int, *counters: Counter) -> float:
    return sum(counter.tps(span_ms) for counter in counters)


def _span_text(span_ms: int) -> str:
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
