// Ways to pull: lite pull with seek, lite pull by assignment, and the plain pull consumer with its offset arithmetic.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class PullChecks {
    private static final int COUNT = 60;

    private PullChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("lite_pull_seek", PullChecks::litePullSeek);
        checks.put("lite_pull_assign", PullChecks::litePullAssign);
        checks.put("plain_pull", PullChecks::plainPull);
        checks.put("long_poll", PullChecks::longPoll);
    }

    /** Everything once; after a seek to the begin everything again; after a seek to offset n only from n on; committed is kept. */
    static void litePullSeek(Cluster cluster) throws Exception {
        String topic = cluster.topic("liteseek", 2);
        Ledger first = new Ledger();
        Ledger again = new Ledger();
        send(cluster, topic, first, again);
        DefaultLitePullConsumer consumer = cluster.configured(new DefaultLitePullConsumer(cluster.prefix + "liteseek", Access.user()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();

        poll(consumer, first);
        first.requireExact();
        for (MessageQueue queue : consumer.assignment()) Cluster.retry(() -> seekToBegin(consumer, queue));
        poll(consumer, again);
        again.requireUnchanged();

        MessageQueue queue = consumer.assignment().iterator().next();
        long end = max(again, queue) + 1;
        consumer.seek(queue, end - 3);
        List<Long> offsets = new ArrayList<>();
        Cluster.retry(() -> {
            for (MessageExt message : consumer.poll(1000)) if (message.getQueueId() == queue.getQueueId() && message.getBrokerName().equals(queue.getBrokerName())) offsets.add(message.getQueueOffset());
            if (!offsets.contains(end - 1)) throw new IllegalStateException("not at the end yet: " + offsets);
            return offsets;
        });
        Cluster.require(offsets.subList(offsets.size() - 3, offsets.size()).equals(List.of(end - 3, end - 2, end - 1)), offsets);

        consumer.commitSync();
        Cluster.retry(() -> {
            Cluster.require(consumer.committed(queue) == end, consumer.committed(queue) + " committed instead of " + end);
            return end;
        });
        consumer.shutdown();
    }

    private static Boolean seekToBegin(DefaultLitePullConsumer consumer, MessageQueue queue) throws Exception {
        consumer.seekToBegin(queue);
        return true;
    }

    private static long max(Ledger ledger, MessageQueue queue) {
        return ledger.received().stream()
            .filter(message -> message.getQueueId() == queue.getQueueId() && message.getBrokerName().equals(queue.getBrokerName()))
            .mapToLong(MessageExt::getQueueOffset).max().orElseThrow();
    }

    /** A consumer that assigns queues to itself shares nothing: it reads all of them, and finds an offset by time. */
    static void litePullAssign(Cluster cluster) throws Exception {
        String topic = cluster.topic("liteassign", 2);
        Ledger ledger = new Ledger();
        send(cluster, topic, ledger);
        DefaultLitePullConsumer consumer = cluster.configured(new DefaultLitePullConsumer(cluster.prefix + "liteassign", Access.user()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); // a seek may leave two pulls on a queue for a moment
        consumer.setAutoCommit(false);
        consumer.start();
        Set<MessageQueue> queues = new HashSet<>(Cluster.retry(() -> consumer.fetchMessageQueues(topic)));
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            long start = consumer.offsetForTimestamp(queue, 1L);
            long end = consumer.offsetForTimestamp(queue, System.currentTimeMillis() + 60_000);
            Cluster.require(start == 0 && end >= COUNT / queues.size() - 1, queue + " by time: [" + start + ", " + end + ")");
        }

        poll(consumer, ledger);

        consumer.shutdown();
        ledger.requireExact();
    }

    private static void poll(DefaultLitePullConsumer consumer, Ledger ledger) throws Exception {
        long deadline = System.nanoTime() + Ledger.PATIENCE_MS * 1_000_000;
        while (!ledger.isComplete()) {
            Cluster.require(System.nanoTime() < deadline, "polled " + ledger.received().size() + " of " + ledger.sentCount());
            ledger.received(consumer.poll(1000));
        }
    }

    /** Reads queue by queue, from min to max; past the end there is nothing, before the beginning there is a correction. */
    static void plainPull(Cluster cluster) throws Exception {
        String topic = cluster.topic("plainpull", 2);
        Ledger ledger = new Ledger();
        send(cluster, topic, ledger);
        DefaultMQPullConsumer consumer = cluster.pullConsumer("plainpull");

        for (MessageQueue queue : Cluster.retry(() -> consumer.fetchSubscribeMessageQueues(topic))) {
            long min = consumer.minOffset(queue);
            long max = consumer.maxOffset(queue);
            Cluster.require(min == 0 && max > 0, queue + " [" + min + ", " + max + ")");
            for (long at = min; at < max; ) {
                PullResult result = consumer.pull(queue, "*", at, 7);
                Cluster.require(result.getPullStatus() == PullStatus.FOUND, result);
                Cluster.require(result.getMsgFoundList().size() <= 7 && result.getMaxOffset() == max, result);
                for (MessageExt message : result.getMsgFoundList()) Cluster.require(message.getQueueOffset() == at++, message);
                ledger.received(result.getMsgFoundList());
                Cluster.require(result.getNextBeginOffset() == at, result);
            }
            PullResult end = consumer.pull(queue, "*", max, 32);
            Cluster.require(end.getPullStatus() == PullStatus.NO_NEW_MSG && end.getNextBeginOffset() == max, end);
            PullResult beyond = consumer.pull(queue, "*", max + 5, 32);
            Cluster.require(beyond.getPullStatus() == PullStatus.OFFSET_ILLEGAL && beyond.getNextBeginOffset() == max, beyond);
            PullResult other = consumer.pull(queue, "NoSuchTag", min, 32);
            Cluster.require(other.getPullStatus() == PullStatus.NO_MATCHED_MSG && other.getNextBeginOffset() > min, other);

            consumer.updateConsumeOffset(queue, max - 1);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, max - 1, false);
            long committed = consumer.fetchConsumeOffset(queue, true);
            Cluster.require(committed == max - 1, queue + " committed " + committed + " instead of " + (max - 1));
        }

        consumer.shutdown();
        ledger.requireExact();
    }

    /** A pull at the end of a queue is held by the broker, and answered by the message that comes. */
    static void longPoll(Cluster cluster) throws Exception {
        String topic = cluster.topic("longpoll", 1);
        DefaultMQProducer producer = cluster.producer("longpoll");
        DefaultMQPullConsumer consumer = cluster.pullConsumer("longpoll");
        consumer.setConsumerTimeoutMillisWhenSuspend(10_000); // half of what the broker may hold it: unless woken, the pull fails
        Map<MessageQueue, Long> next = new HashMap<>();
        for (MessageQueue queue : cluster.queues(producer, topic)) next.put(queue, 0L);

        for (int i = 0; i < 6; i++) {
            for (MessageQueue queue : next.keySet()) {
                long at = next.get(queue);
                CompletableFuture<PullResult> held = CompletableFuture.supplyAsync(() -> {
                    try {
                        return consumer.pullBlockIfNotFound(queue, "*", at, 32);
                    } catch (Exception failed) {
                        throw new IllegalStateException(failed);
                    }
                });
                SendResult sent = producer.send(cluster.message(topic, i), queue);
                PullResult result = held.get(Ledger.PATIENCE_MS, TimeUnit.MILLISECONDS);
                Cluster.require(result.getPullStatus() == PullStatus.FOUND, result);
                Cluster.require(result.getMsgFoundList().get(0).getQueueOffset() == sent.getQueueOffset(), result);
                next.put(queue, at + 1);
            }
        }

        producer.shutdown();
        consumer.shutdown();
    }

    private static void send(Cluster cluster, String topic, Ledger... ledgers) throws Exception {
        DefaultMQProducer producer = cluster.producer(topic.substring(cluster.prefix.length()));
        List<MessageQueue> queues = cluster.queues(producer, topic);
        for (int i = 0; i < COUNT; i++) {
            var message = cluster.message(topic, i);
            for (Ledger ledger : ledgers) ledger.sent(message);
            producer.send(message, queues.get(i % queues.size()));
        }
        producer.shutdown();
    }
}
