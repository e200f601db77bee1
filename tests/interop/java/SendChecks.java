// Ways to send: each ends with a push consumer's ledger.
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

final class SendChecks {
    private static final int COUNT = 100;

    private SendChecks() {}

    static void register(Map<String, Check> checks) {
        checks.put("sync", SendChecks::sync);
        checks.put("async", SendChecks::async);
        checks.put("oneway", SendChecks::oneway);
        checks.put("batch", SendChecks::batch);
        checks.put("big_and_compressed", SendChecks::bigAndCompressed);
        checks.put("chosen_queue", SendChecks::chosenQueue);
        checks.put("vip_channel", SendChecks::vipChannel);
        checks.put("auto_created_topic", SendChecks::autoCreatedTopic);
        checks.put("refused_queue", SendChecks::refusedQueue);
    }

    static void sync(Cluster cluster) throws Exception {
        String topic = cluster.topic("sync", 4);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("sync", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("sync");

        for (int i = 0; i < COUNT; i++) {
            SendResult result = producer.send(ledger.sent(cluster.message(topic, i)));
            Cluster.require(result.getSendStatus() == SendStatus.SEND_OK, result);
        }

        finish(cluster, topic, ledger, producer, consumer);
        Set<String> used = ledger.received().stream().map(m -> m.getStoreHost().toString()).collect(Collectors.toSet());
        Cluster.require(used.size() == cluster.brokers.size(), "only these brokers took messages: " + used);
    }

    static void async(Cluster cluster) throws Exception {
        String topic = cluster.topic("async", 4);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("async", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("async");
        CountDownLatch answered = new CountDownLatch(COUNT);
        AtomicReference<Throwable> refused = new AtomicReference<>();

        for (int i = 0; i < COUNT; i++) {
            producer.send(ledger.sent(cluster.message(topic, i)), new SendCallback() {
                public void onSuccess(SendResult result) {
                    answered.countDown();
                }

                public void onException(Throwable thrown) {
                    refused.set(thrown);
                    answered.countDown();
                }
            });
        }

        Cluster.require(answered.await(Ledger.PATIENCE_MS, TimeUnit.MILLISECONDS), answered.getCount() + " sends were not answered");
        Cluster.require(refused.get() == null, refused.get());
        finish(cluster, topic, ledger, producer, consumer);
    }

    static void oneway(Cluster cluster) throws Exception {
        String topic = cluster.topic("oneway", 4);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("oneway", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("oneway");

        for (int i = 0; i < COUNT; i++) producer.sendOneway(ledger.sent(cluster.message(topic, i)));

        finish(cluster, topic, ledger, producer, consumer);
    }

    static void batch(Cluster cluster) throws Exception {
        String topic = cluster.topic("batch", 4);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("batch", topic, "*", ledger);
        DefaultMQProducer producer = cluster.producer("batch");

        for (int i = 0; i < COUNT; ) {
            List<Message> batch = new ArrayList<>();
            for (int n = 1 + i % 17; n > 0 && i < COUNT; n--) batch.add(ledger.sent(cluster.message(topic, i++)));
            SendResult result = producer.send(batch);
            Cluster.require(result.getSendStatus() == SendStatus.SEND_OK, result);
            int ids = result.getOffsetMsgId().split(",").length;
            Cluster.require(ids == batch.size(), ids + " offset ids for a batch of " + batch.size());
        }

        finish(cluster, topic, ledger, producer, consumer);
    }

    static void bigAndCompressed(Cluster cluster) throws Exception {
        String topic = cluster.topic("big", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.consuming("big", topic, "*", ledger);
        Random random = new Random(7);
        int number = 0;

        for (String type : List.of("ZLIB", "LZ4", "ZSTD")) {
            DefaultMQProducer producer;
            synchronized (SendChecks.class) {
                System.setProperty("rocketmq.message.compressType", type); // a producer reads it as it is made
                producer = cluster.producer("big" + type);
            }
            for (int size : List.of(1, 4095, 4096, 4097, 70_000, 1_000_000)) {
                byte[] noise = new byte[size];
                random.nextBytes(noise);
                producer.send(ledger.sent(cluster.message(topic, number++, noise)));
                for (int i = 0; i < size; i++) noise[i] = (byte) ('a' + (noise[i] & 3));
                producer.send(ledger.sent(cluster.message(topic, number++, noise.clone())));
            }
            producer.shutdown();
        }

        ledger.awaitAll();
        consumer.shutdown();
        ledger.requireExact();
        cluster.requireStored(topic, ledger.sentCount());
    }

    static void chosenQueue(Cluster cluster) throws Exception {
        String topic = cluster.topic("chosen", 3);
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer("chosen");
        List<MessageQueue> queues = cluster.queues(producer, topic);

        for (int i = 0; i < 30; i++) {
            MessageQueue queue = queues.get(i % queues.size());
            SendResult result = producer.send(ledger.sent(cluster.message(topic, i)), queue);
            Cluster.require(result.getMessageQueue().equals(queue), result);
            Cluster.require(result.getQueueOffset() == i / queues.size(), "offset " + result + " for message " + i);
        }

        DefaultMQPushConsumer consumer = cluster.consuming("chosen", topic, "*", ledger);
        finish(cluster, topic, ledger, producer, consumer);
    }

    /** Old clients send, commit and lock on the port two below the one that the route names. */
    static void vipChannel(Cluster cluster) throws Exception {
        String topic = cluster.topic("vip", 2);
        Ledger ledger = new Ledger();
        DefaultMQPushConsumer consumer = cluster.pushConsumer("vip", topic, "*");
        consumer.setVipChannelEnabled(true);
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly) (messages, context) -> {
            ledger.received(messages);
            return org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(cluster.prefix + "vip", Access.user());
        producer.setVipChannelEnabled(true);
        cluster.started(producer);

        for (int i = 0; i < 20; i++) producer.send(ledger.sent(cluster.message(topic, i)));

        finish(cluster, topic, ledger, producer, consumer);
    }

    static void autoCreatedTopic(Cluster cluster) throws Exception {
        String topic = cluster.prefix + "auto";
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = cluster.producer("auto");

        for (int i = 0; i < 20; i++) producer.send(ledger.sent(cluster.message(topic, i)));

        cluster.awaitRoute(topic, 1);
        DefaultMQPushConsumer consumer = cluster.consuming("auto", topic, "*", ledger);
        finish(cluster, topic, ledger, producer, consumer);
    }

    /** A queue that the topic does not have is refused by the broker, and the refusal reaches the sender. */
    static void refusedQueue(Cluster cluster) throws Exception {
        DefaultMQProducer producer = cluster.producer("refused");
        MessageQueue nowhere = new MessageQueue(cluster.topic("refused", 1), cluster.brokers.firstKey(), 99);

        try {
            producer.send(cluster.message(nowhere.getTopic(), 0), nowhere);
            throw new AssertionError("queue 99 of a topic with one queue took a message");
        } catch (org.apache.rocketmq.client.exception.MQBrokerException refusal) {
            Cluster.require(Set.of(1, 29).contains(refusal.getResponseCode()), refusal); // 4.x says "system error", 5.x "invalid parameter"
        }
        producer.shutdown();
        cluster.requireStored(nowhere.getTopic(), 0);
    }

    static void finish(Cluster cluster, String topic, Ledger ledger, DefaultMQProducer producer, DefaultMQPushConsumer... consumers) throws Exception {
        ledger.awaitAll();
        producer.shutdown();
        for (DefaultMQPushConsumer consumer : consumers) consumer.shutdown();
        ledger.requireExact();
        cluster.requireStored(topic, ledger.sentCount());
    }
}
