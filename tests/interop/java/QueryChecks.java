// Finding one message again: by key, by the client's unique id, by the broker's id of place.
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

final class QueryChecks {
    private static final int COUNT = 20;

    private QueryChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("query_by_key", QueryChecks::byKey);
        checks.put("query_by_id", QueryChecks::byId);
    }

    /** Each of a message's keys finds it, and only those that have the key; a key nobody has finds nothing. */
    static void byKey(Cluster cluster) throws Exception {
        String topic = cluster.topic("bykey", 2);
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer("bykey");
        long begin = System.currentTimeMillis() - 60_000;

        for (int i = 0; i < COUNT; i++) {
            Message message = cluster.message(topic, i);
            message.setKeys("own-" + i + " shared-" + i % 2 + " \u952e");
            producer.send(ledger.sent(message));
        }

        long end = System.currentTimeMillis() + 60_000;
        for (int i = 0; i < COUNT; i++) ledger.received(find(producer, topic, "own-" + i, begin, end, 1));
        ledger.requireExact();
        find(producer, topic, "shared-1", begin, end, COUNT / 2);
        find(producer, topic, "\u952e", begin, end, COUNT);
        try {
            List<MessageExt> found = producer.queryMessage(topic, "nobody", 32, begin, end).getMessageList();
            throw new AssertionError("a key that nobody has found " + found);
        } catch (org.apache.rocketmq.client.exception.MQClientException nothing) {
            Cluster.require(nothing.getResponseCode() == 208, nothing); // NO_MESSAGE
        }
        producer.shutdown();
    }

    /** The index may follow the log by a moment, so the answer is awaited; it must never be more than *count*. */
    private static List<MessageExt> find(DefaultMQProducer producer, String topic, String key, long begin, long end, int count) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        Cluster.retry(() -> {
            QueryResult result = producer.queryMessage(topic, key, 64, begin, end);
            if (result.getMessageList().size() < count) throw new IllegalStateException(key + " finds " + result.getMessageList().size() + " of " + count);
            return found.addAll(result.getMessageList());
        });
        Cluster.require(found.size() == count, key + " finds " + found);
        return found;
    }

    static void byId(Cluster cluster) throws Exception {
        String topic = cluster.topic("byid", 2);
        DefaultMQProducer producer = cluster.producer("byid");
        Ledger byUnique = new Ledger();
        Ledger byPlace = new Ledger();

        for (int i = 0; i < COUNT; i++) {
            Message message = cluster.message(topic, i);
            byUnique.sent(message);
            byPlace.sent(message);
            SendResult result = producer.send(message);
            MessageExt unique = Cluster.retry(() -> producer.viewMessage(topic, result.getMsgId()));
            Cluster.require(unique.getQueueOffset() == result.getQueueOffset() && unique.getQueueId() == result.getMessageQueue().getQueueId(), unique);
            byUnique.received(unique);
            MessageExt placed = producer.viewMessage(topic, result.getOffsetMsgId());
            Cluster.require(placed.getQueueOffset() == result.getQueueOffset(), placed);
            byPlace.received(placed);
        }

        producer.shutdown();
        byUnique.requireExact();
        byPlace.requireExact();
    }
}
