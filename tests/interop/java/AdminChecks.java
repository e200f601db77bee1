// What an operator's tool asks of brokers and, through them, of the clients that are connected.
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

final class AdminChecks {
    private static final int COUNT = 20;

    private AdminChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("reset_online", AdminChecks::resetOnline);
        checks.put("connected_clients", AdminChecks::connectedClients);
    }

    /** A reset of a group whose member is connected reaches that member: it consumes everything a second time. */
    static void resetOnline(Cluster cluster) throws Exception {
        String topic = cluster.topic("resetonline", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("resetonline", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("resetonline");
        for (int i = 0; i < COUNT; i++) producer.send(ledger.sent(cluster.message(topic, i)));
        ledger.awaitAll();
        // Until its offsets are committed the broker has nothing to reset.
        Cluster.retry(() -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            long lag = cluster.admin.examineConsumeStats(cluster.prefix + "resetonline", topic).computeTotalDiff();
            if (lag != 0) throw new IllegalStateException("lag " + lag);
            return lag;
        });

        cluster.admin.resetOffsetByTimestamp(topic, cluster.prefix + "resetonline", 0, true);

        ledger.await(() -> ledger.received().size() >= 2 * COUNT);
        producer.shutdown();
        consumer.shutdown();
        ledger.requireEach(2);
    }

    /** Brokers tell who is connected in which group, and fetch a consumer's own account of itself. */
    static void connectedClients(Cluster cluster) throws Exception {
        String topic = cluster.topic("connected", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("connected", topic, "TagA || TagB", ledger);
        DefaultMQProducer producer = cluster.producer("connected");
        for (int i = 0; i < COUNT; i++) producer.send(ledger.sent(cluster.message(topic, i)));
        ledger.awaitAll();
        String group = cluster.prefix + "connected";

        var consumers = Cluster.retry(() -> cluster.admin.examineConsumerConnectionInfo(group));
        Set<String> ids = consumers.getConnectionSet().stream().map(connection -> connection.getClientId()).collect(Collectors.toSet());
        Cluster.require(ids.equals(Set.of(consumer.buildMQClientId())), ids);
        Cluster.require(consumers.getSubscriptionTable().get(topic).getSubString().equals("TagA || TagB"), consumers.getSubscriptionTable());
        Cluster.require(consumers.getMessageModel().name().equals("CLUSTERING"), consumers.getMessageModel());

        var told = cluster.admin.getConsumerRunningInfo(group, consumer.buildMQClientId(), false);
        long queues = told.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count();
        Cluster.require(queues == 2L * cluster.brokers.size(), told.getMqTable());

        var producers = Cluster.retry(() -> cluster.admin.examineProducerConnectionInfo(group, topic));
        Set<String> senders = producers.getConnectionSet().stream().map(connection -> connection.getClientId()).collect(Collectors.toSet());
        Cluster.require(senders.equals(Set.of(producer.buildMQClientId())), senders);

        producer.shutdown();
        consumer.shutdown();
        ledger.requireExact();
    }
}
