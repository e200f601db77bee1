// What happens to a message that its consumer does not take: again later, again in place, and at last the dead letters.
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

final class RetryChecks {
    private static final int COUNT = 8;

    private RetryChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("retry_default_delay", cluster -> retry(cluster, "retrydefault", 0));
        checks.put("retry_chosen_delay", cluster -> retry(cluster, "retrychosen", 1));
        checks.put("dead_letter", RetryChecks::deadLetter);
        checks.put("ordered_suspend", RetryChecks::orderedSuspend);
    }

    /** Refused once, each message comes exactly once more, from the retry topic but named as before. */
    static void retry(Cluster cluster, String name, int delayLevel) throws Exception {
        String topic = cluster.topic(name, 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.pushConsumer(name, topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            ledger.received(messages);
            context.setDelayLevelWhenNextConsume(delayLevel);
            boolean fresh = messages.stream().anyMatch(message -> message.getReconsumeTimes() == 0);
            return fresh ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = cluster.producer(name);

        for (int i = 0; i < COUNT; i++) producer.send(ledger.sent(cluster.message(topic, i)));

        ledger.await(() -> ledger.received().size() >= 2 * COUNT);
        producer.shutdown();
        consumer.shutdown();
        ledger.requireEach(2);
        for (MessageExt message : ledger.received()) Cluster.require(message.getTopic().equals(topic) && message.getReconsumeTimes() <= 1, message);
        if (cluster.returnsToBroker()) requireReturned(ledger.received());
        long retries = ledger.received().stream().filter(message -> message.getReconsumeTimes() == 1).count();
        Cluster.require(retries == COUNT, retries + " retries");
    }

    /**
     * The broker made the second message of the first, and names its place. A client that is refused, or not answered in time,
     * sends one itself: a machine that is too busy may make it do so now and then.
     */
    private static void requireReturned(List<MessageExt> received) {
        Set<String> places = new HashSet<>();
        for (MessageExt message : received) if (message.getReconsumeTimes() == 0) places.add(((MessageClientExt) message).getOffsetMsgId());
        long returned = received.stream().filter(message -> places.contains(message.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID))).count();
        Cluster.require(returned > COUNT / 2, returned + " were returned to the broker");
    }

    /** A message refused more often than its group allows is in the dead letters, once, and not pushed again. */
    static void deadLetter(Cluster cluster) throws Exception {
        String topic = cluster.topic("dead", 2);
        Ledger ledger = new Ledger();
        Ledger dead = new Ledger();
        DefaultMQPushConsumer consumer = cluster.pushConsumer("dead", topic, "*");
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            ledger.received(messages);
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        DefaultMQProducer producer = cluster.producer("dead");

        for (int i = 0; i < COUNT; i++) {
            var message = cluster.message(topic, i);
            ledger.sent(message);
            dead.sent(message);
            producer.send(message);
        }

        readDeadLetters(cluster, "%DLQ%" + cluster.prefix + "dead", dead);
        producer.shutdown();
        consumer.shutdown();
        dead.requireExact();
        ledger.requireEach(2);
    }

    private static void readDeadLetters(Cluster cluster, String topic, Ledger dead) throws Exception {
        DefaultMQPullConsumer reader = cluster.pullConsumer("deadreader");
        Cluster.retry(() -> {
            Ledger now = new Ledger();
            for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
                PullResult result = reader.pull(queue, "*", reader.minOffset(queue), 32);
                if (result.getPullStatus() == PullStatus.FOUND) now.received(result.getMsgFoundList());
            }
            if (now.received().size() < COUNT) throw new IllegalStateException(now.received().size() + " dead letters of " + COUNT);
            dead.received(now.received());
            return now;
        });
        reader.shutdown();
    }

    /** An ordered consumer that is not ready gets the same message again, and nothing behind it before. */
    static void orderedSuspend(Cluster cluster) throws Exception {
        String topic = cluster.topic("suspend", 1);
        Ledger ledger = new Ledger();
        Ledger refused = new Ledger();
        DefaultMQPushConsumer consumer = cluster.pushConsumer("suspend", topic, "*");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            if (messages.stream().anyMatch(message -> Integer.parseInt(message.getUserProperty("n")) % 4 == 1) && refused.received().size() < 5) {
                refused.received(messages);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            ledger.received(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = cluster.producer("suspend");
        List<MessageQueue> queues = cluster.queues(producer, topic);

        for (int i = 0; i < 4 * COUNT; i++) {
            var message = cluster.message(topic, i);
            message.putUserProperty("shard", "of " + i % queues.size());
            producer.send(ledger.sent(message), queues.get(i % queues.size()));
        }

        SendChecks.finish(cluster, topic, ledger, producer, consumer);
        ledger.requireOrder();
        Cluster.require(refused.received().size() >= 5, "the listener refused " + refused.received().size());
    }
}
