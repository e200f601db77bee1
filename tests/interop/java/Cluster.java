// The cluster under test as a Java client sees it: topics made on every broker, producers and consumers with names of their own.
import java.nio.charset.StandardCharsets;
import java.util.Comparator;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

final class Cluster {
    private static final AtomicInteger INSTANCES = new AtomicInteger();
    private static final long PAUSE_MS = 100;
    private static final boolean STATIC = "static".equals(System.getProperty("topics")); // then somebody has made them

    final String nameServer;
    final String prefix;
    final DefaultMQAdminExt admin;
    final TreeMap<String, String> brokers = new TreeMap<>();

    Cluster(String nameServer, String prefix) throws Exception {
        this.nameServer = nameServer;
        this.prefix = prefix;
        admin = configured(new DefaultMQAdminExt(Access.admin()));
        admin.start();
        retry(() -> {
            admin.examineBrokerClusterInfo().getBrokerAddrTable().forEach((name, broker) -> brokers.put(name, broker.getBrokerAddrs().get(0L)));
            if (brokers.isEmpty()) throw new IllegalStateException("the name server knows no broker");
            return brokers;
        });
    }

    /** Makes a topic of *queues* queues on every broker, and returns once the name server tells all of them. */
    String topic(String name, int queues) throws Exception {
        String topic = prefix + name;
        if (STATIC) return topic;
        for (String address : brokers.values()) {
            retry(() -> {
                admin.createAndUpdateTopicConfig(address, new TopicConfig(topic, queues, queues, 6));
                return topic;
            });
        }
        awaitRoute(topic, brokers.size());
        return topic;
    }

    /** Whether a consumer gives a message back to a broker (36). From 5.0 on it does not for logical queues: it sends a new one. */
    boolean returnsToBroker() {
        return !STATIC || MQVersion.CURRENT_VERSION < 413;
    }

    void awaitRoute(String topic, int brokerCount) throws Exception {
        retry(() -> {
            int known = admin.examineTopicRouteInfo(topic).getQueueDatas().size();
            if (known < brokerCount) throw new IllegalStateException(topic + " is known on " + known + " brokers");
            return known;
        });
    }

    DefaultMQProducer producer(String name) throws Exception {
        return started(new DefaultMQProducer(prefix + name, Access.user()));
    }

    <P extends DefaultMQProducer> P started(P producer) throws Exception {
        configured(producer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    /** A push consumer that starts at the first offset; not started yet. */
    DefaultMQPushConsumer pushConsumer(String group, String topic, String expression) throws Exception {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(prefix + group, Access.user(), new AllocateMessageQueueAveragely()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // by default it leaves without committing what its threads still hold
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, expression);
        return consumer;
    }

    DefaultMQPushConsumer consuming(String group, String topic, String expression, Ledger ledger) throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(group, topic, expression);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            ledger.received(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    DefaultMQPushConsumer consumingInOrder(String group, String topic, Ledger ledger) throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(group, topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            ledger.received(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(prefix + group, Access.user()));
        consumer.start();
        return consumer;
    }

    <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(prefix + "client" + INSTANCES.incrementAndGet());
        client.setPollNameServerInterval(1000);
        client.setPersistConsumerOffsetInterval(1000);
        client.setClientCallbackExecutorThreads(2);
        return client;
    }

    /** The readable queues of a topic, in a fixed order. */
    List<MessageQueue> queues(DefaultMQProducer producer, String topic) throws Exception {
        return retry(() -> producer.fetchPublishMessageQueues(topic)).stream().sorted(Comparator.naturalOrder()).collect(Collectors.toList());
    }

    /** The number of messages that the brokers hold for *topic*: more than were sent means that one was stored twice. */
    long stored(String topic) throws Exception {
        long count = 0;
        if (STATIC) {
            // A client that knows one broker gets that one's statistics; of a queue it hears from whoever leads it.
            DefaultMQPullConsumer reader = pullConsumer("counter");
            for (MessageQueue queue : retry(() -> reader.fetchSubscribeMessageQueues(topic))) count += reader.maxOffset(queue) - reader.minOffset(queue);
            reader.shutdown();
            return count;
        }
        for (var offsets : retry(() -> admin.examineTopicStats(topic)).getOffsetTable().values()) count += offsets.getMaxOffset() - offsets.getMinOffset();
        return count;
    }

    void requireStored(String topic, long expected) throws Exception {
        long count = stored(topic);
        if (count != expected) throw new AssertionError(topic + " holds " + count + " messages instead of " + expected);
    }

    /** A message with everything a sender can set, told apart by *number*. */
    Message message(String topic, int number) {
        return message(topic, number, ("body of " + number + " \u00e9\u6d88\ud83d\ude80").getBytes(StandardCharsets.UTF_8));
    }

    Message message(String topic, int number, byte[] body) {
        Message message = new Message(topic, number % 2 == 0 ? "TagA" : "TagB", "key-" + number + " \u043a\u043b\u044e\u0447-" + number, number % 5, body, true);
        message.putUserProperty(Ledger.ID, topic + "#" + number);
        message.putUserProperty("n", String.valueOf(number));
        message.putUserProperty("\u0438\u043c\u044f", "\u503c = {\"\u00e9\": \ud83d\ude80}\t" + number);
        return message;
    }

    /** A new topic reaches the name server a moment later, and a cold JVM answers its first burst with "busy": ask again. */
    static <T> T retry(Callable<T> call) throws Exception {
        long deadline = System.nanoTime() + Ledger.PATIENCE_MS * 1_000_000;
        while (true) {
            try {
                return call.call();
            } catch (Exception failed) {
                if (System.nanoTime() > deadline) throw failed;
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    static void require(boolean holds, Object otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }
}
