// Fills topics with messages of every shape, and writes down all that a client can see of what a broker holds.
//
// The same dump is taken from whichever broker has the store open; two dumps of one store must be equal to the byte.
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class StoreVerbs {
    private static final int[] SIZES = {1, 127, 128, 4095, 4096, 4097, 20_000, 60_000};

    private StoreVerbs() {}

    /** Sends *count* messages numbered from *start*: single ones and batches, small and big, some compressed. */
    static void fill(Cluster cluster, String topic, int start, int count) throws Exception {
        Random random = new Random(start);
        DefaultMQProducer producer = cluster.producer("fill");
        List<MessageQueue> queues = cluster.queues(producer, topic);
        for (int i = start; i < start + count; ) {
            MessageQueue queue = queues.get(random.nextInt(queues.size()));
            if (random.nextInt(5) == 0) {
                List<Message> batch = new ArrayList<>();
                for (int n = Math.min(start + count - i, 1 + random.nextInt(10)); n > 0; n--) batch.add(message(cluster, topic, i++, random, 300));
                Cluster.retry(() -> producer.send(batch, queue));
            } else {
                Message message = message(cluster, topic, i++, random, SIZES[random.nextInt(SIZES.length)]);
                Cluster.retry(() -> producer.send(message, queue));
            }
        }
        producer.shutdown();
    }

    private static Message message(Cluster cluster, String topic, int number, Random random, int size) {
        byte[] body = new byte[size];
        random.nextBytes(body);
        if (number % 2 == 0) for (int i = 0; i < size; i++) body[i] = (byte) ('a' + (body[i] & 3)); // these compress well
        return cluster.message(topic, number, body);
    }

    /** Sends *count* messages of the third delay level (10 s): the broker that has the store open by then delivers them. */
    static void delay(Cluster cluster, String topic, int start, int count) throws Exception {
        DefaultMQProducer producer = cluster.producer("delay");
        for (int i = start; i < start + count; i++) {
            Message message = cluster.message(topic, i);
            message.setDelayTimeLevel(3);
            producer.send(message);
        }
        producer.shutdown();
    }

    /** Commits the middle of every queue of *topic* for *group*. */
    static void commit(Cluster cluster, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = cluster.pullConsumer(group);
        for (MessageQueue queue : Cluster.retry(() -> consumer.fetchSubscribeMessageQueues(topic))) {
            long middle = consumer.maxOffset(queue) / 2;
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, middle, false);
        }
        consumer.shutdown();
    }

    /** Prints every queue and message of *topic*, and the offsets that *group* committed. */
    static void dump(Cluster cluster, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = cluster.pullConsumer(group);
        for (MessageQueue queue : new TreeSet<>(Cluster.retry(() -> consumer.fetchSubscribeMessageQueues(topic)))) {
            long min = Cluster.retry(() -> consumer.minOffset(queue));
            long max = Cluster.retry(() -> consumer.maxOffset(queue));
            Report.line("queue", queue.getQueueId(), "min", min, "max", max, "committed", consumer.fetchConsumeOffset(queue, true));
            for (MessageExt message : read(consumer, queue, min, max)) print(message);
        }
        consumer.shutdown();
    }

    /** Looks for every message of *topic* by its id, and for every tenth by its key; returns how many were found by id. */
    static int find(Cluster cluster, String topic, String group) throws Exception {
        DefaultMQPullConsumer consumer = cluster.pullConsumer(group);
        int found = 0;
        for (MessageQueue queue : Cluster.retry(() -> consumer.fetchSubscribeMessageQueues(topic))) {
            for (MessageExt message : read(consumer, queue, consumer.minOffset(queue), consumer.maxOffset(queue))) {
                MessageExt placed = cluster.admin.viewMessage(topic, ((MessageClientExt) message).getOffsetMsgId());
                Cluster.require(placed.getMsgId().equals(message.getMsgId()), "the id of " + message + " finds " + placed);
                found++;
                if (message.getQueueOffset() % 10 == 0) requireKey(cluster, topic, message);
            }
        }
        consumer.shutdown();
        return found;
    }

    private static List<MessageExt> read(DefaultMQPullConsumer consumer, MessageQueue queue, long min, long max) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        for (long at = min; at < max; ) {
            long from = at;
            PullResult result = Cluster.retry(() -> consumer.pull(queue, "*", from, 32));
            Cluster.require(result.getPullStatus() == PullStatus.FOUND && result.getNextBeginOffset() > at, queue + " at " + at + ": " + result);
            at = result.getNextBeginOffset();
            messages.addAll(result.getMsgFoundList());
        }
        return messages;
    }

    private static void requireKey(Cluster cluster, String topic, MessageExt message) throws Exception {
        String key = message.getKeys().split(" ")[0];
        List<MessageExt> found = Cluster.retry(() -> cluster.admin.queryMessage(topic, key, 8, 0, Long.MAX_VALUE).getMessageList());
        Cluster.require(found.size() == 1 && found.get(0).getCommitLogOffset() == message.getCommitLogOffset(), key + " finds " + found);
    }

    private static void print(MessageExt message) throws Exception {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove("MIN_OFFSET"); // the client adds these two
        properties.remove("MAX_OFFSET");
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bodyCRC", message.getBodyCRC());
        fields.put("storeSize", message.getStoreSize());
        fields.put("bornHost", address(message.getBornHost()));
        fields.put("storeHost", address(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("prepared", message.getPreparedTransactionOffset());
        fields.put("sha256", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(message.getBody())));
        Report.line("message", message.getMsgId(), "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "position", message.getCommitLogOffset(), "stored", message.getStoreTimestamp(), "born", message.getBornTimestamp(),
            "properties", properties, "rest", fields);
    }

    private static String address(SocketAddress address) {
        InetSocketAddress internet = (InetSocketAddress) address;
        return internet.getAddress().getHostAddress() + ":" + internet.getPort();
    }
}
