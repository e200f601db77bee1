// Ways to be pushed to: order, shares of a group, broadcast, tags, restart, delay, request and reply.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class ConsumeChecks {
    private static final int COUNT = 60;

    private ConsumeChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("ordered", ConsumeChecks::ordered);
        checks.put("group_shares_queues", ConsumeChecks::groupSharesQueues);
        checks.put("restart_continues", ConsumeChecks::restartContinues);
        checks.put("broadcast", ConsumeChecks::broadcast);
        checks.put("tags", ConsumeChecks::tags);
        checks.put("delayed", ConsumeChecks::delayed);
        checks.put("request_reply", ConsumeChecks::requestReply);
    }

    /** A selector keeps a key in one queue; two members consume in order, one leaves halfway, and order per key holds. */
    static void ordered(Cluster cluster) throws Exception {
        String topic = cluster.topic("ordered", 4);
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer("ordered");
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        consumers.add(cluster.consumingInOrder("ordered", topic, ledger));
        consumers.add(cluster.consumingInOrder("ordered", topic, ledger));
        awaitShares(topic, consumers);

        sendByKey(cluster, topic, ledger, producer, 0, COUNT);
        ledger.awaitAll();
        consumers.remove(0).shutdown();
        sendByKey(cluster, topic, ledger, producer, COUNT, 2 * COUNT);

        SendChecks.finish(cluster, topic, ledger, producer, consumers.get(0));
        ledger.requireOrder();
    }

    private static void sendByKey(Cluster cluster, String topic, Ledger ledger, DefaultMQProducer producer, int start, int end) throws Exception {
        for (int i = start; i < end; i++) {
            String key = "shard-" + i % 7;
            Message message = cluster.message(topic, i);
            message.putUserProperty("shard", key);
            producer.send(ledger.sent(message), (queues, sent, argument) -> queues.get(Math.floorMod(argument.hashCode(), queues.size())), key);
        }
    }

    /** Two members of a group have different queues, together all; what is sent arrives at exactly one of them. */
    static void groupSharesQueues(Cluster cluster) throws Exception {
        String topic = cluster.topic("shares", 4);
        Ledger ledger = new Ledger();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) consumers.add(cluster.consuming("shares", topic, "*", ledger));
        List<Set<MessageQueue>> owned = awaitShares(topic, consumers);
        DefaultMQProducer producer = cluster.producer("shares");

        for (int i = 0; i < COUNT; i++) producer.send(ledger.sent(cluster.message(topic, i)));

        SendChecks.finish(cluster, topic, ledger, producer, consumers.toArray(new DefaultMQPushConsumer[0]));
        Set<MessageQueue> all = new TreeSet<>(owned.get(0));
        all.addAll(owned.get(1));
        Cluster.require(all.size() == 4 * cluster.brokers.size(), "shared: " + owned);
    }

    /** Waits until each has as many queues of a topic, and together all. A queue that changes hands while a message is handled gives it twice. */
    private static List<Set<MessageQueue>> awaitShares(String topic, List<DefaultMQPushConsumer> consumers) throws Exception {
        return Cluster.retry(() -> {
            int all = consumers.get(0).fetchSubscribeMessageQueues(topic).size();
            List<Set<MessageQueue>> owned = consumers.stream().map(consumer -> queuesOf(consumer, topic)).collect(Collectors.toList());
            boolean isShared = owned.stream().allMatch(queues -> queues.size() == all / consumers.size());
            if (!isShared) throw new IllegalStateException("not shared evenly yet: " + owned);
            return owned;
        });
    }

    private static Set<MessageQueue> queuesOf(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic)).collect(Collectors.toCollection(TreeSet::new));
    }

    /** A group that comes back goes on where it stopped: nothing twice, nothing skipped. */
    static void restartContinues(Cluster cluster) throws Exception {
        String topic = cluster.topic("restart", 4);
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer("restart");

        for (int life = 0; life < 3; life++) {
            for (int i = 0; i < 20; i++) producer.send(ledger.sent(cluster.message(topic, life * 20 + i)));
            DefaultMQPushConsumer consumer = cluster.consuming("restart", topic, "*", ledger);
            ledger.awaitAll();
            consumer.shutdown();
        }

        producer.shutdown();
        ledger.requireExact();
    }

    static void broadcast(Cluster cluster) throws Exception {
        String topic = cluster.topic("broadcast", 2);
        List<Ledger> ledgers = List.of(new Ledger(), new Ledger());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (Ledger ledger : ledgers) {
            DefaultMQPushConsumer consumer = cluster.pushConsumer("broadcast", topic, "*");
            // The package of MessageModel differs between 4.x and 5.x, its constants do not.
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                ledger.received(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        DefaultMQProducer producer = cluster.producer("broadcast");

        for (int i = 0; i < COUNT; i++) {
            Message message = cluster.message(topic, i);
            for (Ledger ledger : ledgers) ledger.sent(message);
            producer.send(message);
        }

        for (Ledger ledger : ledgers) ledger.awaitAll();
        producer.shutdown();
        for (DefaultMQPushConsumer consumer : consumers) consumer.shutdown();
        for (Ledger ledger : ledgers) ledger.requireExact();
    }

    /** "TagA || TagB" brings those two and no other. */
    static void tags(Cluster cluster) throws Exception {
        String topic = cluster.topic("tags", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("tags", topic, "TagA || TagB", ledger);
        DefaultMQProducer producer = cluster.producer("tags");

        for (int i = 0; i < COUNT; i++) {
            Message message = cluster.message(topic, i);
            String tag = List.of("TagA", "TagB", "TagC", "\u6807\u7b7e", "TagAB").get(i % 5);
            message.setTags(tag);
            producer.send(i % 5 < 2 ? ledger.sent(message) : message);
        }

        ledger.awaitAll();
        producer.shutdown();
        consumer.shutdown();
        ledger.requireExact();
        cluster.requireStored(topic, COUNT);
    }

    /** Delay level 1 is a second: every message arrives in its own topic, none early. */
    static void delayed(Cluster cluster) throws Exception {
        String topic = cluster.topic("delayed", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("delayed", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("delayed");

        for (int i = 0; i < 20; i++) {
            Message message = cluster.message(topic, i);
            message.setDelayTimeLevel(1 + i % 2);
            producer.send(ledger.sent(message));
        }

        SendChecks.finish(cluster, topic, ledger, producer, consumer);
        for (MessageExt message : ledger.received()) {
            long waited = message.getStoreTimestamp() - message.getBornTimestamp();
            int wanted = message.getDelayTimeLevel() == 1 ? 1000 : 5000;
            // Upstream rounds a due time down to the second of its schedule.
            Cluster.require(waited >= wanted - 1000, "delivered after " + waited + " ms of " + wanted + ": " + message);
            Cluster.require(message.getTopic().equals(topic), message);
        }
    }

    static void requestReply(Cluster cluster) throws Exception {
        String topic = cluster.topic("request", 2);
        DefaultMQProducer answerer = cluster.producer("answerer");
        DefaultMQPushConsumer consumer = cluster.pushConsumer("request", topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String answer = "answer to " + new String(message.getBody(), StandardCharsets.UTF_8);
                    answerer.send(MessageUtil.createReplyMessage(message, answer.getBytes(StandardCharsets.UTF_8)));
                } catch (Exception failed) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asker = cluster.producer("asker");

        for (int i = 0; i < 10; i++) {
            String question = "question " + i + " \u00bf\u95ee";
            Message reply = asker.request(new Message(topic, question.getBytes(StandardCharsets.UTF_8)), 30_000);
            Cluster.require(new String(reply.getBody(), StandardCharsets.UTF_8).equals("answer to " + question), reply);
        }

        asker.shutdown();
        answerer.shutdown();
        consumer.shutdown();
    }
}
